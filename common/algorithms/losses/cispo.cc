#include "common/algorithms/losses/cispo.h"

#include <algorithm>
#include <cmath>

namespace sluice {

LossValue Cispo(const LossToken& token, double low, double high) {
  const double x = std::exp(ClampLogRatio(token.detached - token.lp_anchor));
  const double weighted = -std::clamp(x, low, high) * token.advantage;
  return {weighted * token.lp_theta, weighted};
}

TokenLoss MakeCispo(const LossSpec& spec) {
  return [low = spec.cispo_low, high = spec.cispo_high](const LossToken& token) {
    return Cispo(token, low, high);
  };
}

ClipRule CispoClip(const LossSpec& spec) {
  return {.low = 1 - spec.cispo_low, .high = spec.cispo_high - 1};
}

void CispoDefaults(LossSpec& spec) { spec.dual.reset(); }

}  // namespace sluice
