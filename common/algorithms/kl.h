#pragma once

#include "absl/types/span.h"
#include "common/algorithms/policy_loss.h"
#include "common/algorithms/ratio.h"

namespace sluice {

// Estimators of KL(policy || reference) from one sampled token, with their gradient with respect to
// lp_theta. D = lp_theta - lp_ref, clamped as in ratio.h. They apply to every trainable token,
// without weights and masks. The names are rows of KlRows() (registry.h).

// The log-probs of one token, as in PolicyTokens (ratio.h).
struct KlToken {
  double lp_theta = 0;
  double lp_ref = 0;
  double lp_behav = 0;  // For KlK3Is alone.
};
using KlFunction = LossValue (*)(const KlToken&);

// k1 = D. The KL in the reward is k1 too. As a loss its expected gradient is 0, so no job may use
// it as one.
LossValue KlK1(const KlToken& token);
// k2 = D^2 / 2. On policy, its expected gradient is exactly that of KL(policy || reference).
LossValue KlK2(const KlToken& token);
// k3 = exp(-D) - 1 + D, at most 10. It is unbiased and never negative, but as a loss its gradient
// is that of KL(reference || policy). It is kept for comparison with the GRPO paper.
LossValue KlK3(const KlToken& token);
// The value of k3 with the gradient of k2.
LossValue KlK2Plus(const KlToken& token);
// rho k3 with rho = exp(lp_theta - lp_behav), where rho is differentiated too: unbiased for tokens
// of an older policy (arXiv 2512.02556). 0 if lp_behav is not finite.
LossValue KlK3Is(const KlToken& token);

// Computes value and gradient of all tokens, [N] each. `tokens` must have lp_ref and lp_behav.
// Aborts if sizes differ.
void ComputeKlLoss(KlFunction kl, const PolicyTokens& tokens, absl::Span<float> value,
                   absl::Span<float> grad);

}  // namespace sluice
