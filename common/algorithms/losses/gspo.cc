#include "common/algorithms/losses/gspo.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

constexpr double kMaxLogSequenceRatio = 10;

}  // namespace

LossValue Gspo(const LossToken& token, const ClipRule& clip) {
  const double log_s = token.log_geo + token.lp_theta - token.detached;
  const double s = std::exp(std::clamp(log_s, -kMaxLogRatio, kMaxLogSequenceRatio));
  const double plain = -token.advantage * s;
  const double clipped = -token.advantage * std::clamp(s, 1 - clip.low, 1 + clip.high);
  const bool inside = log_s >= -kMaxLogRatio && log_s <= kMaxLogSequenceRatio;
  return {std::max(plain, clipped), inside && clipped <= plain ? plain : 0};
}

ClipRule GspoClip(const LossSpec& spec) { return {.low = spec.clip_low, .high = spec.clip_high}; }

TokenLoss MakeGspo(const LossSpec& spec) {
  return [clip = GspoClip(spec)](const LossToken& token) { return Gspo(token, clip); };
}

void GspoDefaults(LossSpec& spec) {
  spec.clip_low = 3e-4;
  spec.clip_high = 4e-4;
  spec.dual.reset();
  spec.aggregation = "seq_mean_token_mean";
}

}  // namespace sluice
