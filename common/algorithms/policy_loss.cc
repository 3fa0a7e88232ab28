#include "common/algorithms/policy_loss.h"

#include "common/base/status.h"

namespace sluice {

double AnchorOf(ProxMode prox, const PolicyTokens& tokens, int64_t t) {
  switch (prox) {
    case ProxMode::kNone: return tokens.lp_behav[t];
    case ProxMode::kSelf: return tokens.lp_theta[t];
    case ProxMode::kRecompute: return tokens.lp_prox[t];
  }
  return 0;
}

void CheckShapes(ProxMode prox, const PolicyTokens& tokens) {
  const size_t n = tokens.lp_theta.size();
  SLUICE_CHECK(tokens.advantage.size() == n && tokens.lp_behav.size() == n);
  SLUICE_CHECK((prox == ProxMode::kRecompute) ? tokens.lp_prox.size() == n
                                              : tokens.lp_prox.empty());
}

void ComputePolicyLoss(const TokenLoss& loss, ProxMode prox, const PolicyTokens& tokens,
                       const Correction& correction, absl::Span<float> value,
                       absl::Span<float> grad) {
  CheckShapes(prox, tokens);
  const size_t n = tokens.lp_theta.size();
  SLUICE_CHECK(correction.weight.size() == n && correction.keep.size() == n && value.size() == n &&
               grad.size() == n);

  for (int64_t t = 0; t < tokens.tokens(); ++t) {
    LossValue f;
    if (correction.keep[t]) {
      f = loss({.lp_theta = tokens.lp_theta[t],
                .lp_anchor = AnchorOf(prox, tokens, t),
                .advantage = tokens.advantage[t]});
    }
    value[t] = static_cast<float>(correction.weight[t] * f.value);
    grad[t] = static_cast<float>(correction.weight[t] * f.grad);
  }
}

}  // namespace sluice
