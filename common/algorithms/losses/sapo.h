#pragma once

#include "common/algorithms/policy_loss.h"
#include "common/algorithms/spec.h"

namespace sluice {

// SAPO (arXiv 2511.20347), a smooth gate in place of a clip:
//   f = -A (4 / tau) sigmoid(tau (x - 1)),   tau = positive if A > 0, else negative
// At x = 1 its gradient is that of REINFORCE.
LossValue Sapo(const LossToken& token, double positive, double negative);

// Uses sapo_positive and sapo_negative of the spec.
TokenLoss MakeSapo(const LossSpec& spec);
void SapoDefaults(LossSpec& spec);

}  // namespace sluice
