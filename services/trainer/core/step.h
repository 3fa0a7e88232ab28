#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace sluice::trainer {

// What one training step came to.
struct StepResult {
  int64_t k = 0;
  std::string skipped;   // Why the step changed nothing (13.6 of the algorithm sheet): no_tokens, no_terms, nonfinite_logprob, nonfinite_gradient.
                         // Empty: it did.
  int64_t skips_in_a_row = 0;
  double reward_mean = 0;     // Unshaped task reward over all members of the batch.
  int64_t reward_count = 0;   // Members.
  int64_t tokens = 0;         // Trained tokens, N.
  int64_t sequences = 0;      // Sequences with a trained token, B_v.
  double loss = 0;            // All terms, normalised.
  double grad_norm = 0;       // Before clipping; of the last minibatch.
  double lr = 0;              // Of the last minibatch.
  std::map<int64_t, int64_t> lag;          // Trained tokens by staleness in versions.
  std::map<std::string, double> metrics;   // Further values by name; absent where they have no meaning.
};

}  // namespace sluice::trainer
