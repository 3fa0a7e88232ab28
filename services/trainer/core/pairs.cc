#include "services/trainer/core/pairs.h"

#include <algorithm>

#include "common/base/status.h"

namespace sluice::trainer {
namespace {

// The sums are in fp64: an answer has thousands of tokens, and the loss depends on small
// differences of its sums.
void SetSums(const MicroBatch& batch, absl::Span<const float> logprobs, std::vector<double>* sums) {
  for (size_t b = 0; b < batch.sequences.size(); ++b) {
    double sum = 0;
    for (int64_t t = batch.offsets[b]; t < batch.offsets[b + 1]; ++t) sum += logprobs[t];
    (*sums)[batch.sequences[b]] = sum;
  }
}

}  // namespace

void PairStats::Merge(const PairStats& other) {
  pairs += other.pairs;
  correct += other.correct;
  reward_chosen += other.reward_chosen;
  reward_rejected += other.reward_rejected;
  logprob_chosen += other.logprob_chosen;
  logprob_rejected += other.logprob_rejected;
}

PairLoss ComparePair(const PairLogprobs& policy, const PairLogprobs& reference, double beta,
                     double smoothing, PairStats* stats) {
  const double gain_chosen = policy.chosen - reference.chosen;
  const double gain_rejected = policy.rejected - reference.rejected;
  if (stats != nullptr) {
    stats->Merge({.pairs = 1,
                  .correct = gain_chosen > gain_rejected,
                  .reward_chosen = beta * gain_chosen,
                  .reward_rejected = beta * gain_rejected,
                  .logprob_chosen = policy.chosen,
                  .logprob_rejected = policy.rejected});
  }
  return DpoLoss(gain_chosen - gain_rejected, beta, smoothing);
}

void AddPairMetrics(const PairStats& stats, std::map<std::string, double>* out) {
  if (stats.pairs == 0) return;
  const double pairs = static_cast<double>(stats.pairs);
  (*out)["dpo_accuracy"] = static_cast<double>(stats.correct) / pairs;
  (*out)["dpo_margin"] = (stats.reward_chosen - stats.reward_rejected) / pairs;
  (*out)["dpo_reward_chosen"] = stats.reward_chosen / pairs;
  (*out)["dpo_reward_rejected"] = stats.reward_rejected / pairs;
  (*out)["dpo_logprob_chosen"] = stats.logprob_chosen / pairs;
  (*out)["dpo_logprob_rejected"] = stats.logprob_rejected / pairs;
}

PairSums::PairSums(absl::Span<const MicroBatch> batches) : split_(batches.size()) {
  size_t sequences = 0;
  for (const MicroBatch& batch : batches) sequences += batch.sequences.size();
  SLUICE_CHECK(sequences % 2 == 0);
  policy_.resize(sequences);
  reference_.resize(sequences);

  std::vector<size_t> home(sequences);  // The micro-batch of each sequence.
  for (size_t i = 0; i < batches.size(); ++i) {
    for (const uint32_t sequence : batches[i].sequences) home[sequence] = i;
  }
  for (size_t s = 0; s < sequences; s += 2) {
    if (home[s] != home[s + 1]) split_[home[s]] = split_[home[s + 1]] = 1;
  }
}

void PairSums::SetReference(const MicroBatch& batch, absl::Span<const float> logprobs) {
  SetSums(batch, logprobs, &reference_);
}
void PairSums::SetPolicy(const MicroBatch& batch, absl::Span<const float> logprobs) {
  SetSums(batch, logprobs, &policy_);
}

std::vector<float> PairSums::Gradient(const MicroBatch& batch, double beta, double smoothing,
                                      double* loss, PairStats* stats) const {
  std::vector<float> gradient(batch.targets.size());
  for (size_t b = 0; b < batch.sequences.size(); ++b) {
    const uint32_t sequence = batch.sequences[b], chosen = sequence / 2 * 2, rejected = chosen + 1;
    const PairLoss pair = ComparePair({policy_[chosen], policy_[rejected]},
                                      {reference_[chosen], reference_[rejected]}, beta, smoothing,
                                      sequence == chosen ? stats : nullptr);
    std::fill(gradient.begin() + batch.offsets[b], gradient.begin() + batch.offsets[b + 1],
              static_cast<float>(sequence == chosen ? pair.slope : -pair.slope));
    if (sequence == chosen) *loss += pair.loss;
  }
  return gradient;
}

}  // namespace sluice::trainer
