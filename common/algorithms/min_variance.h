#pragma once

#include "absl/types/span.h"

namespace sluice {

// VCPO's baseline of minimum variance (arXiv 2602.17616, section 4.2). Legend: for the trajectories
// i of one group, R_i is the reward, u_i the importance weight that the loss applies, and s_i the
// squared norm of the gradient of the sum of its log-probs.
//   b = sum_i u_i^2 s_i R_i / sum_i u_i^2 s_i
// It minimises sum_i u_i^2 s_i (R_i - b)^2, the second moment of the gradient's estimate.
//
// `rewards` and `power` (u_i^2 s_i) have one entry per trajectory. If the powers sum to at most
// 1e-30, the baseline is the mean reward; 0 if there are no rewards.
double MinVarianceBaseline(absl::Span<const double> rewards, absl::Span<const double> power);

}  // namespace sluice
