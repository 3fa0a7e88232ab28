#pragma once

#include <cstdint>
#include <limits>

#include "common/algorithms/policy_loss.h"
#include "common/algorithms/spec.h"

namespace sluice {

// Where the update ratio x is clipped.
struct ClipRule {
  double low = 0.2;  // The ratio is clipped to [1 - low, 1 + high].
  double high = 0.28;
  // The c of the dual clip: if A < 0, the loss is at most -A c. Infinity: off.
  double dual = std::numeric_limits<double>::infinity();
};
ClipRule ClipRuleOf(const LossSpec& spec);

// f = max(-A x, -A clip(x, 1 - low, 1 + high)), x = exp(lp_theta - lp_anchor) (arXiv 1707.06347),
// with a separate upper bound (DAPO's clip-higher, arXiv 2503.14476) and the dual clip (arXiv
// 1912.09729). If both branches are equal, the gradient is that of the unclipped one.
LossValue PpoClip(const LossToken& token, const ClipRule& clip);

// Uses clip_low, clip_high and dual of the spec.
TokenLoss MakePpoClip(const LossSpec& spec);

// How often each bound was active, over all trainable tokens whether kept or not.
struct ClipCounts {
  int64_t high = 0;  // A > 0 and x > 1 + clip.high
  int64_t low = 0;   // A < 0 and x < 1 - clip.low
  int64_t dual = 0;  // A < 0 and x > clip.dual
};
// `sequence_ratio`: x is the geometric mean of the sequence's ratios.
ClipCounts CountClipped(const ClipRule& clip, ProxMode prox, const PolicyTokens& tokens,
                        bool sequence_ratio = false);

}  // namespace sluice
