#pragma once

#include "common/algorithms/policy_loss.h"
#include "common/algorithms/spec.h"

namespace sluice {

// DPPO with the binary total-variation mask (arXiv 2602.04879). The anchor is the behaviour policy.
//   l = -(1 - drop) A x + penalty (log x)^2
// A token is dropped if the policy has already moved by more than `delta` of probability in the
// direction of its advantage: A > 0 and p - p_anchor > delta, or A < 0 and p - p_anchor < -delta.
LossValue DppoTv(const LossToken& token, double delta, double penalty);

// Uses dppo_delta and dppo_penalty of the spec.
TokenLoss MakeDppoTv(const LossSpec& spec);
void DppoTvDefaults(LossSpec& spec);

}  // namespace sluice
