#include "services/trainer/core/rules.h"

#include "common/base/status.h"

namespace sluice::trainer {

bool HasSeparateTerms(const Settings& settings, const Rules& rules) {
  const bool late =
      rules.loss.normalize_weights || (Streams(settings) && IsStepWide(rules.advantage));
  return late && rules.HasRegularTerms();
}

int KeptVersions(const Settings& settings, const Rules& rules) {
  const bool older = rules.loss.correction.split && settings.max_staleness > 0;
  return older ? static_cast<int>(settings.max_staleness) + 1 : 0;
}

int GradientBuffers(const Settings& settings, const Rules& rules) {
  return 1 + (HasSeparateTerms(settings, rules) ? 1 : 0) + (rules.advantage.min_variance ? 2 : 0);
}

bool SharesLongSequences(const Rules& rules) {
  return !NeedsCritic(rules.advantage) && rules.loss.router_balance == 0 &&
         rules.loss.distill.kind != DistillKind::kFull && rules.loss.prox != ProxMode::kExact;
}

absl::StatusOr<Rules> ResolveRules(const Settings& settings) {
  Rules rules;
  rules.loss.router_balance = settings.algorithm.loss.router_balance;
  if (settings.kind == Settings::Kind::kSft) {
    rules.loss.aggregation = kTokenMean;
    return rules;
  }
  if (settings.kind == Settings::Kind::kDpo) {
    rules.loss.aggregation = kPairMean;
    return rules;
  }

  SLUICE_ASSIGN_OR_RETURN(rules.advantage, ResolveAdvantage(settings.algorithm.advantage));
  SLUICE_ASSIGN_OR_RETURN(rules.truncation, ResolveTruncation(settings.algorithm.advantage));
  const AdvantageSpec& advantage = settings.algorithm.advantage;
  rules.gae = {.gamma = advantage.gamma,
               .lam = advantage.lam,
               .lam_value = advantage.lam_value,
               .lam_alpha = advantage.lam_alpha};
  rules.reward_kl = advantage.kl;
  rules.kl_control = {.target = advantage.kl_target.value_or(0),
                      .horizon = static_cast<double>(advantage.kl_horizon)};
  SLUICE_ASSIGN_OR_RETURN(rules.loss, ResolveLoss(settings.algorithm.loss, settings.max_staleness));
  if (settings.teacher) {
    SLUICE_ASSIGN_OR_RETURN(rules.loss.distill, ResolveDistill(settings.algorithm.distill));
  }
  // Before the first update the proximal policy is the policy itself. With one update per batch its
  // log-probs are therefore those of the update's own forward pass, bit for bit.
  if ((rules.loss.prox == ProxMode::kRecompute || rules.loss.prox == ProxMode::kExact) &&
      settings.minibatches == 1)
    rules.loss.prox = ProxMode::kSelf;
  return rules;
}

}  // namespace sluice::trainer
