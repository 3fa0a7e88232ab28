#pragma once

#include <vector>

#include "absl/types/span.h"

namespace sluice {

// The factors of duration-aware gradients (arXiv 2509.01684). An asynchronous job samples short
// turns more often than long ones, in proportion to 1 / dt, which these factors undo:
//   f_a = min(dt_a / mean(dt), 10)
// `seconds` is the wall time of each turn of the step, on whatever rank it is trained. Turns whose
// time is not finite or not above 0 have the factor 1, and do not enter the mean.
std::vector<double> DurationFactors(absl::Span<const double> seconds);

// The mean that they divide by; 0 if no turn has a time.
double MeanDuration(absl::Span<const double> seconds);

}  // namespace sluice
