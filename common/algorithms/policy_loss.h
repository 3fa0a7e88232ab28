#pragma once

#include <cstdint>
#include <limits>

#include "absl/types/span.h"
#include "common/algorithms/correction.h"
#include "common/algorithms/ratio.h"

namespace sluice {

// Policy losses, to be minimised. Per token l = u * f(x, A), where x is the update ratio to the
// anchor (ProxMode), A the advantage, and u the weight of correction.h.
//
// Each loss has a closed form for d l / d lp_theta, computed in fp64 together with the value. So
// the trainer needs no autograd for the loss itself: it back-propagates sum(c * dl * lp_theta),
// where dl is this derivative and c the token's factor from the aggregation. The names are rows of
// LossRows() (registry.h).

// Where the update ratio x is clipped.
struct ClipRule {
  double low = 0.2;  // The ratio is clipped to [1 - low, 1 + high].
  double high = 0.28;
  // The c of the dual clip: if A < 0, the loss is at most -A c. Infinity: off.
  double dual = std::numeric_limits<double>::infinity();
};

// A value and its derivative.
struct LossValue {
  double value = 0;
  double grad = 0;  // d value / d lp_theta
};

// What f depends on, for one token.
struct LossToken {
  double lp_theta = 0;
  double lp_anchor = 0;
  double advantage = 0;
};

// f = -A lp_theta. Only its gradient is meaningful: it is that of the policy gradient.
LossValue Reinforce(const LossToken& token, const ClipRule& clip);

// f = max(-A x, -A clip(x, 1 - low, 1 + high)), x = exp(lp_theta - lp_anchor) (arXiv 1707.06347),
// with a separate upper bound (DAPO's clip-higher, arXiv 2503.14476) and the dual clip (arXiv
// 1912.09729). If both branches are equal, the gradient is that of the unclipped one.
LossValue PpoClip(const LossToken& token, const ClipRule& clip);

// f = -lp_theta: supervised fine-tuning.
inline LossValue Sft(double lp_theta) { return {-lp_theta, -1}; }

using LossFunction = LossValue (*)(const LossToken&, const ClipRule&);

// How often each bound was active, over all trainable tokens whether kept or not.
struct ClipCounts {
  int64_t high = 0;  // A > 0 and x > 1 + clip.high
  int64_t low = 0;   // A < 0 and x < 1 - clip.low
  int64_t dual = 0;  // A < 0 and x > clip.dual
};
ClipCounts CountClipped(const ClipRule& clip, ProxMode prox, const PolicyTokens& tokens);

// Computes l and d l / d lp_theta of all tokens, [N] each. Both are 0 for tokens that `correction`
// leaves out. Aborts if sizes do not match, or if lp_prox is present and `prox` is not kRecompute.
void PolicyLoss(LossFunction loss, const ClipRule& clip, ProxMode prox, const PolicyTokens& tokens,
                const Correction& correction, absl::Span<float> value, absl::Span<float> grad);

}  // namespace sluice
