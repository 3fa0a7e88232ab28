#pragma once

#include "common/algorithms/losses/ppo_clip.h"
#include "common/algorithms/policy_loss.h"
#include "common/algorithms/spec.h"

namespace sluice {

// GSPO in its token form (arXiv 2507.18071): PPO's clip on the ratio of the sequence,
//   s = exp(log_geo) * exp(lp_theta - detached),   f = max(-A s, -A clip(s, 1 - low, 1 + high))
// The value of s is the geometric mean of the sequence's ratios; each token passes its gradient.
LossValue Gspo(const LossToken& token, const ClipRule& clip);

// Uses clip_low and clip_high of the spec.
TokenLoss MakeGspo(const LossSpec& spec);
ClipRule GspoClip(const LossSpec& spec);  // The same bounds, for the counts of clipped tokens.
// The bounds of the paper, which are much narrower than PPO's, and the mean over sequences.
void GspoDefaults(LossSpec& spec);

}  // namespace sluice
