#include "common/algorithms/policy_loss.h"

#include <cmath>

#include "common/base/status.h"

namespace sluice {

double AnchorOf(ProxMode prox, const PolicyTokens& tokens, int64_t t) {
  switch (prox) {
    case ProxMode::kNone: return tokens.lp_behav[t];
    case ProxMode::kSelf: return tokens.lp_theta[t];
    case ProxMode::kRecompute:
    case ProxMode::kLoglinear:
    case ProxMode::kEwma:
    case ProxMode::kExact: return tokens.lp_prox[t];
  }
  return 0;
}

double MeanLogRatio(ProxMode prox, const PolicyTokens& tokens, int64_t begin, int64_t end) {
  double sum = 0, count = 0;
  for (int64_t t = begin; t < end; ++t) {
    if (!std::isfinite(tokens.lp_behav[t])) continue;
    sum += tokens.lp_theta[t] - AnchorOf(prox, tokens, t);
    ++count;
  }
  return count == 0 ? 0 : ClampLogRatio(sum / count);
}

void CheckShapes(ProxMode prox, const PolicyTokens& tokens) {
  const size_t n = tokens.lp_theta.size();
  SLUICE_CHECK(tokens.advantage.size() == n && tokens.lp_behav.size() == n);
  SLUICE_CHECK(HasProximal(prox) ? tokens.lp_prox.size() == n : tokens.lp_prox.empty());
}

void ComputePolicyLoss(const TokenLoss& loss, ProxMode prox, const PolicyTokens& tokens,
                       const Correction& correction, absl::Span<float> value,
                       absl::Span<float> grad) {
  CheckShapes(prox, tokens);
  const size_t n = tokens.lp_theta.size();
  SLUICE_CHECK(correction.weight.size() == n && correction.keep.size() == n && value.size() == n &&
               grad.size() == n);

  for (int64_t i = 0; i < tokens.sequences(); ++i) {
    const int64_t begin = tokens.offsets[i], end = tokens.offsets[i + 1];
    const double log_geo = MeanLogRatio(prox, tokens, begin, end);
    for (int64_t t = begin; t < end; ++t) {
      LossValue f;
      if (correction.keep[t]) {
        f = loss({.lp_theta = tokens.lp_theta[t],
                  .lp_anchor = AnchorOf(prox, tokens, t),
                  .advantage = tokens.advantage[t],
                  .detached = tokens.lp_theta[t],
                  .log_geo = log_geo});
      }
      value[t] = static_cast<float>(correction.weight[t] * f.value);
      grad[t] = static_cast<float>(correction.weight[t] * f.grad);
    }
  }
}

}  // namespace sluice
