#include "common/algorithms/min_variance.h"

#include "common/base/status.h"

namespace sluice {

double MinVarianceBaseline(absl::Span<const double> rewards, absl::Span<const double> power) {
  SLUICE_CHECK(rewards.size() == power.size());
  double sum = 0, power_sum = 0, weighted = 0;
  for (size_t i = 0; i < rewards.size(); ++i) {
    sum += rewards[i];
    power_sum += power[i];
    weighted += power[i] * rewards[i];
  }
  if (power_sum > 1e-30) return weighted / power_sum;
  return rewards.empty() ? 0 : sum / static_cast<double>(rewards.size());
}

}  // namespace sluice
