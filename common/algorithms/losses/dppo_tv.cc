#include "common/algorithms/losses/dppo_tv.h"

#include <cmath>

namespace sluice {

LossValue DppoTv(const LossToken& token, double delta, double penalty) {
  const double difference = token.lp_theta - token.lp_anchor, log_x = ClampLogRatio(difference);
  const double x = std::exp(log_x), a = token.advantage;
  const double moved = std::exp(token.lp_theta) - std::exp(token.lp_anchor);
  const bool drop = (a > 0 && moved > delta) || (a < 0 && moved < -delta);
  const double policy = drop ? 0 : -a * x;
  const bool inside = std::abs(difference) <= kMaxLogRatio;
  return {policy + penalty * log_x * log_x, inside ? policy + 2 * penalty * log_x : 0};
}

TokenLoss MakeDppoTv(const LossSpec& spec) {
  return [delta = spec.dppo_delta, penalty = spec.dppo_penalty](const LossToken& token) {
    return DppoTv(token, delta, penalty);
  };
}

void DppoTvDefaults(LossSpec& spec) {
  spec.prox = "none";
  spec.tis.reset();
  spec.veto.reset();
  spec.dual.reset();
}

}  // namespace sluice
