#include "common/algorithms/losses/sapo.h"

#include <cmath>

namespace sluice {

LossValue Sapo(const LossToken& token, double positive, double negative) {
  const double log_x = token.lp_theta - token.lp_anchor, x = std::exp(ClampLogRatio(log_x));
  const double a = token.advantage, tau = a > 0 ? positive : negative;
  const double p = 1 / (1 + std::exp(-tau * (x - 1)));
  const bool inside = std::abs(log_x) <= kMaxLogRatio;
  return {-a * 4 / tau * p, inside ? -a * 4 * p * (1 - p) * x : 0};
}

TokenLoss MakeSapo(const LossSpec& spec) {
  return [positive = spec.sapo_positive, negative = spec.sapo_negative](const LossToken& token) {
    return Sapo(token, positive, negative);
  };
}

void SapoDefaults(LossSpec& spec) {
  spec.dual.reset();
  spec.aggregation = "seq_mean_token_mean";
}

}  // namespace sluice
