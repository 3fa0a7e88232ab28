#pragma once

#include <vector>

#include "absl/types/span.h"

namespace sluice {

// VCPO's baseline of minimum variance (arXiv 2602.17616, section 4.2). Legend: for the trajectories
// i of one group, R_i is the reward, u_i the importance weight that the loss applies, and s_i the
// squared norm of the gradient of the sum of its log-probs.
//   b = sum_i u_i^2 s_i R_i / sum_i u_i^2 s_i,   A_i = (R_i - b) / d
// where d is the population std of the R_i, or 1 if it is at most 1e-8. The baseline minimises
// sum_i u_i^2 s_i (R_i - b)^2, the second moment of the gradient's estimate.
struct MinVariance {
  double baseline = 0;
  double scale = 1;  // d
  // A_i is 0 for all members: there is only one, or their rewards are all equal.
  bool flat = false;
};

// `rewards` and `power` (u_i^2 s_i) have one entry per trajectory. Members whose reward is not
// finite are left out. If the powers sum to at most 1e-30, the baseline is the mean reward.
MinVariance ComputeMinVariance(absl::Span<const double> rewards, absl::Span<const double> power);

}  // namespace sluice
