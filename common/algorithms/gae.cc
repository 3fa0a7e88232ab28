#include "common/algorithms/gae.h"

#include <algorithm>

#include "common/base/status.h"

namespace sluice {

double PolicyLambda(const GaeRule& rule, int64_t tokens) {
  if (!rule.lam_alpha.has_value()) return rule.lam;
  return 1 - 1 / std::max(*rule.lam_alpha * static_cast<double>(tokens), 1.0);
}

void ComputeGae(const GaeRule& rule, absl::Span<const double> rewards,
                absl::Span<const float> values, double bootstrap, absl::Span<float> advantages,
                absl::Span<float> targets) {
  SLUICE_CHECK(values.size() == rewards.size() && advantages.size() == rewards.size() &&
               targets.size() == rewards.size());
  const double policy_decay = rule.gamma * PolicyLambda(rule, static_cast<int64_t>(rewards.size()));
  const double value_decay = rule.gamma * rule.lam_value.value_or(rule.lam);

  double next_value = bootstrap, advantage = 0, target_advantage = 0;
  for (size_t t = rewards.size(); t-- > 0;) {
    const double delta = rewards[t] + rule.gamma * next_value - values[t];
    advantage = delta + policy_decay * advantage;
    target_advantage = delta + value_decay * target_advantage;
    next_value = values[t];
    advantages[t] = static_cast<float>(advantage);
    targets[t] = static_cast<float>(target_advantage + values[t]);
  }
}

}  // namespace sluice
