#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sluice {

// M2PO (arXiv 2510.01161). A token points outward if its ratio rho = exp(lp_theta - lp_behav) has
// moved in the direction of its advantage: A > 0 and rho > 1, or A < 0 and rho < 1. While the mean
// of (log rho)^2 over the outward tokens of the step is above `tau`, the one with the largest value
// is left out; of equal ones, the first.
//
// All spans are [N], over the tokens of one optimizer step. Tokens whose `keep` is 0 do not count.
// Returns [N]: 0 for the tokens left out here, else 1.
std::vector<uint8_t> M2poKeep(absl::Span<const float> lp_theta, absl::Span<const float> lp_behav,
                              absl::Span<const float> advantage, absl::Span<const uint8_t> keep,
                              double tau);

}  // namespace sluice
