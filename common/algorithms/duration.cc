#include "common/algorithms/duration.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

constexpr double kMostFactor = 10;

bool IsKnown(double seconds) { return std::isfinite(seconds) && seconds > 0; }

}  // namespace

double MeanDuration(absl::Span<const double> seconds) {
  const auto known = static_cast<double>(std::count_if(seconds.begin(), seconds.end(), IsKnown));
  double mean = 0;
  for (const double dt : seconds) {
    if (IsKnown(dt)) mean += dt / known;
  }
  return mean;
}

std::vector<double> DurationFactors(absl::Span<const double> seconds) {
  const double mean = MeanDuration(seconds);
  std::vector<double> factors;
  for (const double dt : seconds)
    factors.push_back(IsKnown(dt) ? std::min(dt / mean, kMostFactor) : 1);
  return factors;
}

}  // namespace sluice
