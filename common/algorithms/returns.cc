#include "common/algorithms/returns.h"

#include <cmath>

namespace sluice {

void ToReturns(double gamma, absl::Span<double> rewards) {
  for (size_t t = rewards.size(); t-- > 1;) rewards[t - 1] += gamma * rewards[t];
}

void TokenMoments::Add(double value) {
  ++count_;
  const double delta = value - mean_;
  mean_ += delta / count_;
  squares_ += delta * (value - mean_);
}

double TokenMoments::Whiten(double value) const {
  if (count_ < 2) return 0;
  return (value - mean_) / std::sqrt(squares_ / (count_ - 1) + 1e-8);
}

}  // namespace sluice
