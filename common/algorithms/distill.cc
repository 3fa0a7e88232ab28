#include "common/algorithms/distill.h"

#include <cmath>

#include "common/algorithms/policy_loss.h"
#include "common/base/status.h"

namespace sluice {

bool IsInTrustRegion(const DistillRule& rule, double lp_theta, double lp_behav) {
  return !(std::exp(lp_theta) - std::exp(lp_behav) < -rule.trust_region);
}

std::vector<float> DistilledAdvantages(const DistillRule& rule, ProxMode prox,
                                       const PolicyTokens& tokens, DistillSums* sums) {
  CheckShapes(prox, tokens);
  const size_t n = tokens.lp_theta.size();
  SLUICE_CHECK(tokens.lp_teacher.size() == n);

  std::vector<float> advantage(tokens.advantage.begin(), tokens.advantage.end());
  for (size_t t = 0; t < n; ++t) {
    const double theta = tokens.lp_theta[t], teacher = tokens.lp_teacher[t];
    sums->kl += ClampLogRatio(theta - teacher);
    if (!IsInTrustRegion(rule, theta, tokens.lp_behav[t])) {
      ++sums->left_out;
      continue;
    }
    const double difference = AnchorOf(prox, tokens, static_cast<int64_t>(t)) - teacher;
    if (!std::isfinite(difference)) continue;
    advantage[t] = static_cast<float>(advantage[t] - rule.coef * ClampLogRatio(difference));
  }
  return advantage;
}

}  // namespace sluice
