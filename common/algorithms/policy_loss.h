#pragma once

#include <cstdint>
#include <functional>

#include "absl/types/span.h"
#include "common/algorithms/correction.h"
#include "common/algorithms/ratio.h"

namespace sluice {

// Policy losses, to be minimised. Per token l = u * f(x, A), where x is the update ratio to the
// anchor (ProxMode), A the advantage, and u the weight of correction.h.
//
// Each f has a closed form for d f / d lp_theta, computed in fp64 together with the value. So the
// trainer needs no autograd for the loss itself: it back-propagates sum(c * dl * lp_theta), where
// dl is the derivative of l and c the token's factor from the aggregation. Each f is a file of
// losses/; the names are rows of LossRows() (registry.h).

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
  double detached = 0;  // The value of lp_theta as a constant: it has no gradient.
  // The mean over the token's sequence of log x, as a constant.
  double log_geo = 0;
};

// f with its parameters.
using TokenLoss = std::function<LossValue(const LossToken&)>;

// f = -lp_theta: supervised fine-tuning.
inline LossValue Sft(double lp_theta) { return {-lp_theta, -1}; }

// The log-prob that the update ratio of token t refers to.
double AnchorOf(ProxMode prox, const PolicyTokens& tokens, int64_t t);

// The mean over the tokens [begin, end) of the log-ratio to the anchor, clamped as in ratio.h.
// Tokens whose lp_behav is not finite are left out; 0 if there are no others.
double MeanLogRatio(ProxMode prox, const PolicyTokens& tokens, int64_t begin, int64_t end);

// Aborts if sizes do not match, or if lp_prox is there although `prox` has none.
void CheckShapes(ProxMode prox, const PolicyTokens& tokens);

// Computes l and d l / d lp_theta of all tokens, [N] each. Both are 0 for tokens that `correction`
// leaves out. Aborts as CheckShapes() does.
void ComputePolicyLoss(const TokenLoss& loss, ProxMode prox, const PolicyTokens& tokens,
                       const Correction& correction, absl::Span<float> value,
                       absl::Span<float> grad);

}  // namespace sluice
