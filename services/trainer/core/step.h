#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice::trainer {

// The result of one training step.
struct StepResult {
  int64_t k = 0;
  // Why the step changed nothing: no_tokens, no_terms, nonfinite_logprob, nonfinite_gradient
  // or nonfinite_value. Empty if it changed the weights, or those of the critic.
  std::string skipped;
  int64_t skips_in_a_row = 0;
  // Only the critic was trained (CriticSettings::warmup): the policy is as it was, and loss,
  // grad_norm and lr mean nothing.
  bool critic_alone = false;
  // Mean task reward, before shaping, over the trajectories of the batch whose reward is finite; 0
  // if there are none.
  double reward_mean = 0;
  int64_t reward_count = 0;  // Number of these trajectories.
  int64_t tokens = 0;        // Number of trained tokens, N.
  int64_t sequences = 0;     // Number of sequences with a trained token, B_v.
  // Normalised sum of the loss's terms, as a mean over the updates that were applied.
  double loss = 0;
  double grad_norm = 0;  // Before clipping; of the last update.
  double lr = 0;         // Of the last update.
  double seconds_forward_backward = 0;
  double flops = 0;  // Of the policy's forward and backward passes; see TrainingFlops().
  double seconds_optim = 0;
  std::map<int64_t, int64_t> staleness;  // Number of trained tokens by staleness in versions.
  // Further values by name; a value without a meaning in this step is absent. reward_std,
  // reward_min and reward_max are of the task rewards before shaping. flat_share is the share of
  // groups whose rewards, as the advantages use them, are all equal; at 1 the rewards teach
  // nothing.
  std::map<std::string, double> metrics;
};

// Says what a value of StepResult::skipped means, and what helps.
absl::string_view SkipText(absl::string_view reason);

}  // namespace sluice::trainer
