#include "common/algorithms/m2po.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace sluice {

std::vector<uint8_t> M2poKeep(absl::Span<const float> lp_theta, absl::Span<const float> lp_behav,
                              absl::Span<const float> advantage, absl::Span<const uint8_t> keep,
                              double tau) {
  const size_t n = lp_theta.size();
  SLUICE_CHECK(lp_behav.size() == n && advantage.size() == n && keep.size() == n);
  std::vector<std::pair<double, size_t>> outward;  // (log rho)^2 and the token.
  double sum = 0;
  for (size_t t = 0; t < n; ++t) {
    const double log_rho = static_cast<double>(lp_theta[t]) - lp_behav[t];
    if (!keep[t] || !(advantage[t] * log_rho > 0)) continue;
    outward.emplace_back(log_rho * log_rho, t);
    sum += outward.back().first;
  }
  std::stable_sort(outward.begin(), outward.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });

  std::vector<uint8_t> kept(n, 1);
  double count = static_cast<double>(outward.size());
  for (const auto& [square, token] : outward) {
    if (sum <= tau * count) break;
    kept[token] = 0;
    sum -= square;
    --count;
  }
  return kept;
}

}  // namespace sluice
