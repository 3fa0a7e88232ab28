#include "common/algorithms/histogram.h"

#include <algorithm>
#include <cmath>

namespace sluice {

void LogRatioHistogram::Add(double log_ratio) {
  min_ = count_ == 0 ? log_ratio : std::min(min_, log_ratio);
  max_ = count_ == 0 ? log_ratio : std::max(max_, log_ratio);
  ++count_;
  const double bin = std::floor((log_ratio + kMost) / (2 * kMost) * kBins);
  ++bins_[static_cast<size_t>(std::clamp(bin + 1, 0.0, kBins + 1.0))];
}

void LogRatioHistogram::Merge(const LogRatioHistogram& other) {
  if (other.count_ == 0) return;
  min_ = count_ == 0 ? other.min_ : std::min(min_, other.min_);
  max_ = count_ == 0 ? other.max_ : std::max(max_, other.max_);
  count_ += other.count_;
  for (size_t i = 0; i < bins_.size(); ++i) bins_[i] += other.bins_[i];
}

double LogRatioHistogram::Sorted(int64_t index) const {
  if (index <= 0) return min_;
  if (index >= count_ - 1) return max_;
  constexpr double kWidth = 2 * kMost / kBins;
  for (int i = 0; i < kBins + 2; ++i) {
    if (index >= bins_[i]) {
      index -= bins_[i];
      continue;
    }
    // The values of a bin are taken as evenly spread over it. The two outer bins reach to the
    // extremes.
    const double begin = i == 0 ? min_ : std::max(min_, -kMost + (i - 1) * kWidth);
    const double end = i == kBins + 1 ? max_ : std::min(max_, -kMost + i * kWidth);
    return begin +
           (end - begin) * (static_cast<double>(index) + 0.5) / static_cast<double>(bins_[i]);
  }
  return max_;
}

double LogRatioHistogram::Quantile(double q) const {
  if (count_ == 0) return 1;
  const double position = q * static_cast<double>(count_ - 1);
  const int64_t below = static_cast<int64_t>(position);
  const double low = Sorted(below), high = Sorted(below + 1);
  return std::exp(low + (position - static_cast<double>(below)) * (high - low));
}

}  // namespace sluice
