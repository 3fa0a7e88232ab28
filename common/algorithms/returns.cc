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

void TokenMoments::Merge(const TokenMoments& other) {
  if (other.count_ == 0) return;
  const double count = count_ + other.count_, delta = other.mean_ - mean_;
  squares_ += other.squares_ + delta * delta * count_ * other.count_ / count;
  mean_ += delta * other.count_ / count;
  count_ = count;
}

double TokenMoments::variance() const { return count_ < 2 ? 0 : squares_ / (count_ - 1); }

double TokenMoments::Whiten(double value) const {
  if (count_ < 2) return 0;
  return (value - mean_) / std::sqrt(variance() + 1e-8);
}

}  // namespace sluice
