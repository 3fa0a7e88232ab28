#pragma once

#include <vector>

#include "absl/types/span.h"
#include "common/algorithms/losses/ppo_clip.h"
#include "common/algorithms/policy_loss.h"
#include "common/algorithms/spec.h"

namespace sluice {

// AEPO's entropy-balanced clip (arXiv 2510.14545): PPO's clip whose upper bound is
// (1 + high) x / sg(x). Its value is that of PPO, but a token beyond the upper bound keeps the
// gradient -(1 + high) A.
LossValue Aepo(const LossToken& token, const ClipRule& clip);

// Uses clip_low and clip_high of the spec.
TokenLoss MakeAepo(const LossSpec& spec);
void AepoDefaults(LossSpec& spec);

// The factors 1 + strength * h by which AEPO multiplies the advantages of a step, one per token:
// h = (H - mean H) / std H (ddof 1) over the step's tokens, and 0 if the std is 0. `entropy` [N] is
// in nats.
std::vector<double> AepoFactors(absl::Span<const float> entropy, double strength);

}  // namespace sluice
