#pragma once

#include <array>
#include <cstdint>

namespace sluice {

// Quantiles of log-ratios over a step, from counts that can be merged over micro-batches and ranks:
// 2048 equal bins on [-8, 8], and one on each side of them. A quantile is off by at most one bin,
// 1/128 of log-ratio. The extremes are exact.
class LogRatioHistogram {
 public:
  void Add(double log_ratio);  // Must be finite.
  void Merge(const LogRatioHistogram& other);

  int64_t count() const { return count_; }
  // The ratio at index q (count - 1) of the sorted log-ratios, between two of which it interpolates
  // linearly. q in [0, 1]; 0 gives the minimum and 1 the maximum. 1 if nothing was added.
  double Quantile(double q) const;

 private:
  double Sorted(int64_t index) const;  // The log-ratio at this place of the sorted values.

  static constexpr int kBins = 2048;
  static constexpr double kMost = 8;
  std::array<int64_t, kBins + 2> bins_{};
  int64_t count_ = 0;
  double min_ = 0, max_ = 0;
};

}  // namespace sluice
