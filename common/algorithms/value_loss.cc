#include "common/algorithms/value_loss.h"

#include <algorithm>
#include <cmath>

namespace sluice {

LossValue ValueLoss(double v, double old_v, double target, double clip) {
  const double free = v - target;
  const double clipped = std::clamp(v, old_v - clip, old_v + clip) - target;
  if (clipped * clipped > free * free) return {0.5 * clipped * clipped, 0};
  return {0.5 * free * free, free};
}

void ValueStats::Add(double v, double target, double loss) {
  loss_ += loss;
  targets_.Add(target);
  errors_.Add(target - v);
}

void ValueStats::Merge(const ValueStats& other) {
  loss_ += other.loss_;
  targets_.Merge(other.targets_);
  errors_.Merge(other.errors_);
}

bool ValueStats::finite() const {
  return std::isfinite(loss_) && std::isfinite(targets_.variance()) &&
         std::isfinite(errors_.variance());
}

std::optional<double> ValueStats::explained_variance() const {
  constexpr double kLeastVariance = 1e-12;
  if (!(targets_.variance() > kLeastVariance)) return std::nullopt;
  return 1 - errors_.variance() / targets_.variance();
}

}  // namespace sluice
