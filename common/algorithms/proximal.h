#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sluice {

// The log-linear approximation of the proximal policy (arXiv 2512.06547), which needs no forward
// pass: a token that was sampled s versions before this step has
//   lp_prox = lp_behav + alpha (lp_theta - lp_behav),   alpha = s / (s + 1)
// A token of this very version (s = 0) is therefore anchored at the policy that sampled it, and a
// very stale one nearly at the current policy. lp_theta counts as a constant. Where lp_behav is not
// finite, lp_prox is lp_theta. All spans are [N]; returns [N].
std::vector<float> LoglinearProximal(absl::Span<const float> lp_theta,
                                     absl::Span<const float> lp_behav,
                                     absl::Span<const int32_t> staleness);

// Weights of the running average phi <- phi * old_weight + theta * new_weight of PPO-EWMA
// (arXiv 2110.00641), at update `updates` (1 for the first): with the normaliser
// c_n = beta c_{n-1} + 1, c_0 = 1, they are beta c_{n-1} / c_n and 1 / c_n.
struct EwmaWeights {
  double old_weight = 0, new_weight = 1;
};
EwmaWeights EwmaAt(double beta, int64_t updates);

// The log-probs [N] of each token under the version that sampled it, from those that the trainer
// has computed with older weights, `older` [N] (NaN where it could not; or empty). A token of the
// present version has `now` [N], that of the policy before the update.
std::vector<float> OwnVersionLogprobs(absl::Span<const float> older, absl::Span<const float> now,
                                      absl::Span<const int32_t> staleness);

}  // namespace sluice
