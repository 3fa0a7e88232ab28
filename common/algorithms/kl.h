#pragma once

#include "absl/types/span.h"
#include "common/algorithms/policy_loss.h"
#include "common/algorithms/ratio.h"

namespace sluice {

// Estimators of KL(policy || reference) from one sampled token, D = lp_theta - lp_ref, with their
// gradient in lp_theta. They act on every trainable token, with no weight and no mask. The names
// are rows of KlRows() (registry.h).

struct KlToken {
  double lp_theta = 0;
  double lp_ref = 0;
  double lp_behav = 0;  // KlK3Is alone.
};
using KlFunction = LossValue (*)(const KlToken&);

// D. For logging and for KL in the reward; as a loss its expected gradient is 0, so no job may ask
// for that.
LossValue KlK1(const KlToken& token);
// D^2 / 2. On policy its gradient is exactly that of KL(policy, reference).
LossValue KlK2(const KlToken& token);
// exp(-D) - 1 + D, at most 10. Unbiased and never negative; as a loss its gradient is that of
// KL(reference, policy): kept for parity with GRPO's paper.
LossValue KlK3(const KlToken& token);
// The value of k3 with the gradient of k2.
LossValue KlK2Plus(const KlToken& token);
// rho k3, rho = exp(lp_theta - lp_behav) differentiated too: right in expectation for tokens of an
// older policy (arXiv 2512.02556). 0 where lp_behav is not finite.
LossValue KlK3Is(const KlToken& token);

// Value and gradient of all tokens, [N] each. `tokens` has lp_ref.
void KlLoss(KlFunction kl, const PolicyTokens& tokens, absl::Span<float> value,
            absl::Span<float> grad);

}  // namespace sluice
