#include "common/algorithms/proximal.h"

#include <cmath>
#include <limits>

#include "common/base/status.h"

namespace sluice {

std::vector<float> LoglinearProximal(absl::Span<const float> lp_theta,
                                     absl::Span<const float> lp_behav,
                                     absl::Span<const int32_t> staleness) {
  const size_t n = lp_theta.size();
  SLUICE_CHECK(lp_behav.size() == n && staleness.size() == n);
  std::vector<float> prox(n);
  for (size_t t = 0; t < n; ++t) {
    const double behav = lp_behav[t], alpha = staleness[t] / (staleness[t] + 1.0);
    prox[t] = std::isfinite(behav) ? static_cast<float>(behav + alpha * (lp_theta[t] - behav))
                                   : lp_theta[t];
  }
  return prox;
}

std::vector<float> OwnVersionLogprobs(absl::Span<const float> older, absl::Span<const float> now,
                                      absl::Span<const int32_t> staleness) {
  const size_t n = now.size();
  SLUICE_CHECK(staleness.size() == n && (older.empty() || older.size() == n));
  std::vector<float> own(n, std::numeric_limits<float>::quiet_NaN());
  for (size_t t = 0; t < n; ++t) {
    if (staleness[t] == 0) own[t] = now[t];
    else if (!older.empty()) own[t] = older[t];
  }
  return own;
}

EwmaWeights EwmaAt(double beta, int64_t updates) {
  // c_n = 1 + beta + .. + beta^n. The closed form makes the average a function of the number of
  // updates, so that a resumed run needs no further state.
  const double n = static_cast<double>(updates);
  const double c = beta < 1 ? (1 - std::pow(beta, n + 1)) / (1 - beta) : n + 1;
  return {.old_weight = (c - 1) / c, .new_weight = 1 / c};
}

}  // namespace sluice
