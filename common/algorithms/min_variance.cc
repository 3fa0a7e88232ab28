#include "common/algorithms/min_variance.h"

#include <cmath>

#include "common/base/status.h"

namespace sluice {

MinVariance ComputeMinVariance(absl::Span<const double> rewards, absl::Span<const double> power) {
  SLUICE_CHECK(rewards.size() == power.size());
  double count = 0, sum = 0, squares = 0, power_sum = 0, weighted = 0;
  for (size_t i = 0; i < rewards.size(); ++i) {
    if (!std::isfinite(rewards[i])) continue;
    ++count;
    sum += rewards[i];
    power_sum += power[i];
    weighted += power[i] * rewards[i];
  }
  MinVariance out;
  if (count < 2) return {.baseline = sum, .scale = 1, .flat = true};
  const double mean = sum / count;
  for (const double r : rewards) {
    if (std::isfinite(r)) squares += (r - mean) * (r - mean);
  }
  const double std = std::sqrt(squares / count);
  out.baseline = power_sum > 1e-30 ? weighted / power_sum : mean;
  out.flat = std <= 1e-8;
  out.scale = out.flat ? 1 : std;
  return out;
}

}  // namespace sluice
