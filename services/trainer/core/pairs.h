#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "services/trainer/core/micro_batch.h"

namespace sluice::trainer {

// Sums over the pairs of an update. A reward is beta (lp_theta - lp_ref), summed over an answer:
// the reward that the policy implies (DPO, arXiv:2305.18290).
struct PairStats {
  int64_t pairs = 0;
  int64_t correct = 0;  // Pairs whose chosen answer has the higher reward.
  double reward_chosen = 0, reward_rejected = 0;
  double logprob_chosen = 0, logprob_rejected = 0;  // Of whole answers, in nats.

  void Merge(const PairStats& other);
};

// Adds the means over the pairs, if there are any: dpo_accuracy, dpo_margin, dpo_reward_chosen,
// dpo_reward_rejected, dpo_logprob_chosen and dpo_logprob_rejected.
void AddPairMetrics(const PairStats& stats, std::map<std::string, double>* out);

// The answers of the pairs of one update: sequence 2p is the chosen answer of pair p, 2p + 1 the
// rejected one. Keeps what the loss of a pair needs of both, which may be in two micro-batches.
class PairSums {
 public:
  // `batches` hold the sequences of the update, all of them once.
  explicit PairSums(absl::Span<const MicroBatch> batches);

  // Whether the batch has an answer whose pair's other answer is in another batch.
  bool IsSplit(size_t batch) const { return split_[batch] != 0; }

  // Set the log-probs of the batch's answers, whose sums are kept. `logprobs` is [N].
  void SetReference(const MicroBatch& batch, absl::Span<const float> logprobs);
  void SetPolicy(const MicroBatch& batch, absl::Span<const float> logprobs);

  // Returns the derivative of the loss by each of the batch's log-probs [N]. Adds the losses of the
  // pairs whose chosen answer is in the batch to *loss, and counts these pairs. All log-probs of
  // the pairs must be set.
  std::vector<float> Gradient(const MicroBatch& batch, double beta, double smoothing, double* loss,
                              PairStats* stats) const;

 private:
  // By sequence.
  std::vector<double> policy_, reference_;
  std::vector<uint8_t> split_;  // By micro-batch.
};

}  // namespace sluice::trainer
