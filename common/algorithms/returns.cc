#include "common/algorithms/returns.h"

#include <algorithm>
#include <cmath>

namespace sluice {

std::vector<double> PlaceRewards(double reward, absl::Span<const TokenReward> token_rewards,
                                 absl::Span<const uint64_t> positions) {
  std::vector<double> rewards(positions.size());
  for (const TokenReward& earned : token_rewards) {
    reward -= earned.value;
    const auto after = std::upper_bound(positions.begin(), positions.end(), earned.position);
    if (after != positions.begin()) rewards[after - positions.begin() - 1] += earned.value;
  }
  rewards.back() += reward;
  return rewards;
}

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
