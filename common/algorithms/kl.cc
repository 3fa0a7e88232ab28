#include "common/algorithms/kl.h"

#include <cmath>

#include "common/base/status.h"

namespace sluice {
namespace {

constexpr double kMaxK3 = 10;  // Limit of the value of k3.

// A clamped difference of log-probs. `has_gradient` says whether it lies inside the clamp, where
// the gradient is not 0.
struct Difference {
  double value;
  bool has_gradient;
};
Difference ClampDifference(double a, double b) {
  return {ClampLogRatio(a - b), std::abs(a - b) <= kMaxLogRatio};
}

}  // namespace

LossValue KlK1(const KlToken& token) {
  const Difference d = ClampDifference(token.lp_theta, token.lp_ref);
  return {d.value, d.has_gradient ? 1.0 : 0.0};
}

LossValue KlK2(const KlToken& token) {
  const Difference d = ClampDifference(token.lp_theta, token.lp_ref);
  return {d.value * d.value / 2, d.has_gradient ? d.value : 0};
}

LossValue KlK3(const KlToken& token) {
  const Difference d = ClampDifference(token.lp_theta, token.lp_ref);
  const double k3 = std::exp(-d.value) - 1 + d.value;
  return {std::min(k3, kMaxK3), d.has_gradient && k3 <= kMaxK3 ? 1 - std::exp(-d.value) : 0};
}

LossValue KlK2Plus(const KlToken& token) { return {KlK3(token).value, KlK2(token).grad}; }

LossValue KlK3Is(const KlToken& token) {
  if (!std::isfinite(token.lp_behav)) return {};
  const Difference log_rho = ClampDifference(token.lp_theta, token.lp_behav);
  const double rho = std::exp(log_rho.value);
  const LossValue k3 = KlK3(token);
  return {rho * k3.value, rho * ((log_rho.has_gradient ? k3.value : 0) + k3.grad)};
}

void ComputeKlLoss(KlFunction kl, const PolicyTokens& tokens, absl::Span<float> value,
                   absl::Span<float> grad) {
  const size_t n = tokens.lp_theta.size();
  SLUICE_CHECK(tokens.lp_ref.size() == n && tokens.lp_behav.size() == n && value.size() == n &&
               grad.size() == n);
  for (size_t t = 0; t < n; ++t) {
    const LossValue k = kl({.lp_theta = tokens.lp_theta[t],
                            .lp_ref = tokens.lp_ref[t],
                            .lp_behav = tokens.lp_behav[t]});
    value[t] = static_cast<float>(k.value);
    grad[t] = static_cast<float>(k.grad);
  }
}

}  // namespace sluice
