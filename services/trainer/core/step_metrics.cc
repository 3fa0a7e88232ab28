#include "services/trainer/core/step_metrics.h"

#include <utility>

namespace sluice::trainer {

void AddPolicyMetrics(const PolicyMetrics& m, double advantage_factor, StepMetrics* out) {
  const std::pair<const char*, double> values[] = {
      {"kl_behav_prox_k1", m.kl_behav_prox_k1},
      {"kl_behav_prox_k3", m.kl_behav_prox_k3},
      {"kl_behav_theta_k1", m.kl_behav_theta_k1},
      {"kl_behav_theta_k3", m.kl_behav_theta_k3},
      {"kl_prox_theta_k1", m.kl_prox_theta_k1},
      {"kl_prox_theta_k3", m.kl_prox_theta_k3},
      {"kl_prox_theta_k3_is", m.kl_prox_theta_k3_is},
      {"chi2_token", m.chi2_token},
      {"chi2_seq", m.chi2_seq},
      {"ess_seq", m.ess_seq},
      {"ess_token", m.ess_token},
      {"ess_seq_w", m.ess_seq_w},
      {"absdiff_mean", m.absdiff_mean},
      {"absdiff_max", m.absdiff_max},
      {"prob_diff_mean", m.prob_diff_mean},
      {"prob_diff_max", m.prob_diff_max},
      {"log_ppl_gap", m.log_ppl_gap},
      {"clip_high", m.clip_high},
      {"clip_low", m.clip_low},
      {"clip_dual", m.clip_dual},
      {"kept", m.kept},
      {"tis_capped", m.capped},
      {"vetoed_sequences", m.vetoed_sequences},
      {"advantage_mean", m.advantage_mean * advantage_factor},
      {"advantage_std", m.advantage_std * advantage_factor}};
  for (const auto& [name, value] : values) (*out)[name] = value;
}

void AddRewardMetrics(const SequenceBuilder& builder, StepMetrics* out) {
  const AdvantageStream& advantages = builder.advantages();
  (*out)["bad_rewards"] = static_cast<double>(advantages.bad_rewards());
  if (advantages.groups() == 0) return;

  const double groups = static_cast<double>(advantages.groups());
  (*out)["flat_share"] = 1 - static_cast<double>(advantages.spread_groups()) / groups;
  (*out)["flat_groups"] = static_cast<double>(advantages.flat_groups());
  (*out)["singleton_groups"] = static_cast<double>(advantages.singleton_groups());
  if (builder.rewards().count() == 0) return;

  (*out)["reward_std"] = builder.rewards().std();
  (*out)["reward_min"] = builder.rewards().min();
  (*out)["reward_max"] = builder.rewards().max();
}

void AddStalenessMetrics(const StalenessStats& staleness, StepMetrics* out) {
  (*out)["staleness_mean"] = staleness.mean();
  (*out)["staleness_p95"] = staleness.Quantile(0.95);
  (*out)["staleness_max"] = static_cast<double>(staleness.max());
  (*out)["mixed_versions"] = staleness.mixed_fraction();
}

}  // namespace sluice::trainer
