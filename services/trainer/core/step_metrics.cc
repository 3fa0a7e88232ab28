#include "services/trainer/core/step_metrics.h"

#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::trainer {
namespace {

bool IsOn(const LossRule& rule, Mask mask) {
  const CorrectionRule& correction = rule.correction;
  constexpr double kOff = CorrectionRule::kOff;
  switch (mask) {
    case Mask::kWeight:
      return correction.level != WeightLevel::kNone && correction.outside == WeightOutside::kDrop;
    case Mask::kVeto: return correction.veto > 0 || correction.veto_high < kOff;
    case Mask::kGeo: return correction.geo_low > 0 || correction.geo_high < kOff;
    case Mask::kK3: return correction.k3_max < kOff;
    case Mask::kOpsm: return correction.opsm < kOff;
    case Mask::kM2po: return rule.m2po > 0;
  }
  return false;
}

void AddQuantiles(const std::string& name, const LogRatioHistogram& ratios, StepMetrics* out) {
  const std::pair<const char*, double> quantiles[] = {{"_min", 0},   {"_p1", 0.01},  {"_p5", 0.05},
                                                      {"_p50", 0.5}, {"_p95", 0.95}, {"_p99", 0.99},
                                                      {"_max", 1}};
  for (const auto& [suffix, q] : quantiles) (*out)[name + suffix] = ratios.Quantile(q);
}

}  // namespace

void AddPolicyMetrics(const PolicyStats& stats, const LossRule& rule, double advantage_factor,
                      StepMetrics* out) {
  const std::optional<PolicyMetrics> metrics = stats.Metrics();
  if (!metrics.has_value()) return;
  const PolicyMetrics& m = *metrics;
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
      {"w_conflated", m.conflated},
      {"advantage_mean", m.advantage_mean * advantage_factor},
      {"advantage_std", m.advantage_std * advantage_factor}};
  for (const auto& [name, value] : values) (*out)[name] = value;
  if (rule.correction.split) (*out)["stale_capped"] = m.stale_capped;
  // The effective share of the samples under the weights in use. A job whose learning rate follows
  // it expects it to be small.
  if (rule.ess_power == 0)
    (*out)["ess"] = rule.correction.level == WeightLevel::kSequence ? m.ess_seq : m.ess_token;
  for (size_t i = 0; i < kMasks; ++i) {
    const Mask mask = static_cast<Mask>(i);
    if (!IsOn(rule, mask)) continue;
    const std::string name = absl::StrCat("masked_", MaskName(mask));
    (*out)[absl::StrCat(name, "_tokens")] = m.masked[i].tokens;
    (*out)[absl::StrCat(name, "_sequences")] = m.masked[i].sequences;
  }
  AddQuantiles("rho", stats.quantiles().rho, out);
  AddQuantiles("w", stats.quantiles().w, out);
  AddQuantiles("r", stats.quantiles().r, out);
}

std::optional<double> FindEffectiveShare(const StepMetrics& metrics, const LossSpec& loss) {
  const bool sequences = loss.tis.has_value() && loss.tis_level == "sequence";
  const auto found = metrics.find(sequences ? "ess_seq" : "ess_token");
  if (found == metrics.end()) return std::nullopt;
  return found->second;
}

void AddValueMetrics(const ValueStats& stats, StepMetrics* out) {
  if (stats.tokens() == 0) return;
  (*out)["value_loss"] = stats.loss_sum() / static_cast<double>(stats.tokens());
  if (const std::optional<double> explained = stats.explained_variance(); explained.has_value())
    (*out)["explained_variance"] = *explained;
}

void AddRewardMetrics(const AdvantageRule& rule, const SequenceBuilder& builder, StepMetrics* out) {
  const AdvantageStream& advantages = builder.advantages();
  (*out)["bad_rewards"] = static_cast<double>(advantages.bad_rewards());
  if (advantages.groups() == 0) return;

  if (!IgnoresRewards(rule)) {
    const double groups = static_cast<double>(advantages.groups());
    // Where no two answers are compared, single ones say nothing about the signal.
    if (NeedsGroup(rule) || advantages.singleton_groups() < advantages.groups())
      (*out)["flat_share"] = 1 - static_cast<double>(advantages.spread_groups()) / groups;
    (*out)["flat_groups"] = static_cast<double>(advantages.flat_groups());
    (*out)["singleton_groups"] = static_cast<double>(advantages.singleton_groups());
  }
  if (builder.rewarded_tokens() > 0)
    (*out)["rewarded_tokens"] = static_cast<double>(builder.rewarded_tokens());
  if (builder.rewards().count() == 0) return;

  (*out)["reward_std"] = builder.rewards().std();
  (*out)["reward_min"] = builder.rewards().min();
  (*out)["reward_max"] = builder.rewards().max();
}

void AddDistillMetrics(const DistillRule& rule, const DistillSums& sums, int64_t tokens,
                       StepMetrics* out) {
  if (rule.kind == DistillKind::kNone) return;
  (*out)["teacher_kl"] = sums.kl / static_cast<double>(tokens);
  if (rule.trust_region < std::numeric_limits<double>::infinity())
    (*out)["teacher_left_out"] = static_cast<double>(sums.left_out) / static_cast<double>(tokens);
}

void AddMismatch(const Settings& settings, const LossRule& rule, const StalenessStats& staleness,
                 StepMetrics* out) {
  const bool first_pass = rule.prox == ProxMode::kSelf || rule.prox == ProxMode::kRecompute ||
                          rule.prox == ProxMode::kExact ||
                          (rule.prox == ProxMode::kNone && settings.minibatches == 1);
  const auto difference = out->find("absdiff_mean");
  if (!first_pass || staleness.max() != 0 || difference == out->end()) return;
  (*out)["logprob_mismatch"] = difference->second;
}

void AddStalenessMetrics(const StalenessStats& staleness, StepMetrics* out) {
  (*out)["staleness_mean"] = staleness.mean();
  (*out)["staleness_p95"] = staleness.Quantile(0.95);
  (*out)["staleness_max"] = static_cast<double>(staleness.max());
  (*out)["mixed_versions"] = staleness.mixed_fraction();
}

}  // namespace sluice::trainer
