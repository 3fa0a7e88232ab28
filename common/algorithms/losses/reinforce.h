#pragma once

#include "common/algorithms/policy_loss.h"
#include "common/algorithms/spec.h"

namespace sluice {

// f = -A lp_theta. Only its gradient is meaningful: it is that of the policy gradient.
LossValue Reinforce(const LossToken& token);

// It has no parameters.
TokenLoss MakeReinforce(const LossSpec& spec);

}  // namespace sluice
