#include "services/rollout/core/eval/interval.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/splitmix.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr double kZ = 1.959963984540054;  // The normal distribution's quantile of 97.5 %.
constexpr size_t kResamples = 2000;
constexpr size_t kMostResampled = 10000;

double MeanOf(absl::Span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Interval NormalInterval(absl::Span<const double> values) {
  const double mean = MeanOf(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double n = static_cast<double>(values.size());
  const double half = kZ * std::sqrt(squares / (n - 1) / n);
  return {mean - half, mean + half};
}

}  // namespace

Interval WilsonInterval(absl::Span<const double> shares) {
  SLUICE_CHECK(!shares.empty());
  const double n = static_cast<double>(shares.size());
  const double p = MeanOf(shares);
  const double scale = 1 + kZ * kZ / n;
  const double center = (p + kZ * kZ / (2 * n)) / scale;
  const double half = kZ / scale * std::sqrt(p * (1 - p) / n + kZ * kZ / (4 * n * n));
  return {std::max(0.0, center - half), std::min(1.0, center + half)};
}

std::optional<Interval> BootstrapInterval(std::vector<double> values, uint64_t seed) {
  if (values.size() < 2) return std::nullopt;
  std::sort(values.begin(), values.end());
  if (values.size() > kMostResampled) return NormalInterval(values);

  SplitMix64 random(Mix64(seed));
  std::vector<double> means(kResamples);
  for (double& mean : means) {
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) sum += values[random.Below(values.size())];
    mean = sum / static_cast<double>(values.size());
  }
  std::sort(means.begin(), means.end());
  const auto quantile = [&](double share) {
    return means[static_cast<size_t>(share * static_cast<double>(kResamples - 1) + 0.5)];
  };
  return Interval{quantile(0.025), quantile(0.975)};
}

}  // namespace sluice
