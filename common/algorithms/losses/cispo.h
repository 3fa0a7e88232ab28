#pragma once

#include "common/algorithms/losses/ppo_clip.h"
#include "common/algorithms/policy_loss.h"
#include "common/algorithms/spec.h"

namespace sluice {

// CISPO (arXiv 2506.13585): f = -clip(x, low, high) A lp_theta, the clipped ratio as a constant.
// No token loses its gradient. The bounds are those of the ratio itself.
LossValue Cispo(const LossToken& token, double low, double high);

// Uses cispo_low and cispo_high of the spec.
TokenLoss MakeCispo(const LossSpec& spec);
// The same bounds, for the counts of clipped tokens.
ClipRule CispoClip(const LossSpec& spec);
void CispoDefaults(LossSpec& spec);

}  // namespace sluice
