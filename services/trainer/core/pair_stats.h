#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace sluice::trainer {

// Sums over the pairs of answers of an update, or of an evaluation. A reward is
// beta (lp_theta - lp_ref), summed over an answer: the reward that the policy implies (DPO,
// arXiv:2305.18290).
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

}  // namespace sluice::trainer
