#include "common/algorithms/losses/ppo_clip.h"

#include <algorithm>
#include <cmath>

namespace sluice {

ClipRule ClipRuleOf(const LossSpec& spec) {
  return {.low = spec.clip_low,
          .high = spec.clip_high,
          .dual = spec.dual.value_or(std::numeric_limits<double>::infinity())};
}

LossValue PpoClip(const LossToken& token, const ClipRule& clip) {
  const double log_x = token.lp_theta - token.lp_anchor;
  const double x = std::exp(ClampLogRatio(log_x));
  const double a = token.advantage;
  const double plain = -a * x;
  const double clipped = -a * std::clamp(x, 1 - clip.low, 1 + clip.high);

  // The gradient of -a x with respect to lp_theta is -a x again.
  const bool has_gradient = std::abs(log_x) <= kMaxLogRatio && clipped <= plain;
  LossValue loss{std::max(plain, clipped), has_gradient ? plain : 0};
  // The dual clip: beyond it the loss is constant.
  if (a < 0 && loss.value > -a * clip.dual) loss = {-a * clip.dual, 0};
  return loss;
}

TokenLoss MakePpoClip(const LossSpec& spec) {
  return [clip = ClipRuleOf(spec)](const LossToken& token) { return PpoClip(token, clip); };
}

ClipCounts CountClipped(const ClipRule& clip, ProxMode prox, const PolicyTokens& tokens,
                        bool sequence_ratio) {
  CheckShapes(prox, tokens);
  ClipCounts counts;
  for (int64_t i = 0; i < tokens.sequences(); ++i) {
    const int64_t begin = tokens.offsets[i], end = tokens.offsets[i + 1];
    const double log_geo = sequence_ratio ? MeanLogRatio(prox, tokens, begin, end) : 0;
    for (int64_t t = begin; t < end; ++t) {
      const double log_x =
          sequence_ratio ? log_geo : tokens.lp_theta[t] - AnchorOf(prox, tokens, t);
      const double x = std::exp(ClampLogRatio(log_x));
      const float a = tokens.advantage[t];
      counts.high += a > 0 && x > 1 + clip.high;
      counts.low += a < 0 && x < 1 - clip.low;
      counts.dual += a < 0 && x > clip.dual;
    }
  }
  return counts;
}

}  // namespace sluice
