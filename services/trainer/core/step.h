#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice::trainer {

// What one training step came to.
struct StepResult {
  int64_t k = 0;
  // Why the step changed nothing: no_tokens, no_terms, nonfinite_logprob, nonfinite_gradient.
  // Empty: it did.
  std::string skipped;
  int64_t skips_in_a_row = 0;
  // Unshaped task reward over all members of the batch; 0 if there are none.
  double reward_mean = 0;
  int64_t reward_count = 0;  // Members.
  int64_t tokens = 0;        // Trained tokens, N.
  int64_t sequences = 0;     // Sequences with a trained token, B_v.
  double loss = 0;           // All terms, normalised; mean over the updates.
  double grad_norm = 0;      // Before clipping; of the last update.
  double lr = 0;             // Of the last update.
  double seconds_forward_backward = 0;
  double seconds_optim = 0;
  std::map<int64_t, int64_t> staleness;  // Trained tokens by versions.
  // Further values by name; absent where they have no meaning. Of the unshaped task rewards:
  // reward_std, reward_min, reward_max. flat_share: the share of groups whose rewards, as the
  // advantages see them, do not differ. At 1 the rewards teach nothing.
  std::map<std::string, double> metrics;
};

// What `StepResult::skipped` means, and what helps.
absl::string_view SkipText(absl::string_view reason);

}  // namespace sluice::trainer
