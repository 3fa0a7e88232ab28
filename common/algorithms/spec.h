#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sluice {

// What a job's `algorithm` block says, in the names of common/algorithms/registry.h. Plain data:
// ValidateAlgorithm (validate.h) checks it, ResolveLoss and ResolveAdvantage turn the names into
// functions.

struct AdvantageSpec {
  std::string kind = "pool_loo";  // A row of AdvantageRows().
  // Set by `group_filter: signal`: groups whose task rewards are all equal are not trained on.
  bool signal_filter = false;
  // The job fails when this many steps' worth of groups are rejected in a row.
  int64_t max_rejected_steps = 10;
  std::string truncated = "keep";  // A row of TruncationRows().
  // Coefficient of KL(policy || reference) that is subtracted from the reward. 0: off.
  double kl = 0;
  double gamma = 1;  // Discount per token, for advantages that are returns of single tokens.
  // Of advantage gae; see GaeRule.
  double lam = 0.95;
  std::optional<double> lam_value, lam_alpha;
  bool raw = false;  // The advantages are not whitened.
  // An answer that was cut at the length limit goes on with the critic's value of its end.
  bool bootstrap_truncated = false;
  // The KL per token at which `kl` is held; see KlControl. Unset: `kl` stays as it is.
  std::optional<double> kl_target;
  int64_t kl_horizon = 10000;  // In answers.
  // The advantages of a turn are multiplied by its share of the wall time (duration.h).
  bool duration_aware = false;

  bool operator==(const AdvantageSpec&) const = default;
};

struct LossSpec {
  std::string kind = "dapo";       // A row of LossRows().
  std::string prox = "recompute";  // A row of ProxRows().
  double ewma = 0.889;             // Decay of the averaged weights of prox ewma.
  double clip_low = 0.2;           // The ratio is clipped to [1 - clip_low, 1 + clip_high].
  double clip_high = 0.28;
  std::optional<double> dual = 3.0;  // c > 1 of the dual clip. Unset: off.
  double cispo_low = 0;              // Loss cispo clips the ratio itself to these bounds.
  double cispo_high = 5;
  double sapo_positive = 1;  // Loss sapo: sharpness of the gate if A > 0, and otherwise.
  double sapo_negative = 1.05;
  double dppo_delta = 0.2;          // Loss dppo_tv: most change of a token's probability.
  double dppo_penalty = 1e-3;       // Its coefficient of (log ratio)^2.
  double aepo_entropy = 0.2;        // Loss aepo: A is multiplied by 1 + this * entropy score.
  std::optional<double> tis = 2.0;  // Cap of the importance weight. Unset: weights are 1.
  double tis_low = 0;               // Lower bound of the importance weight.
  // A row of WeightRows(): one weight per token, or one per sequence.
  std::string tis_level = "token";
  // A row of OutsideRows(): what happens to a weight outside of [tis_low, tis].
  std::string tis_outside = "clip";
  bool tis_normalize = false;  // The weights are divided by their mean over the step.
  // A sequence with a token weight below `veto` or above `veto_high` is left out. Unset: none is.
  std::optional<double> veto = 1e-4;
  std::optional<double> veto_high;
  // A sequence is left out whose geometric mean weight is outside of [geo_low, geo_high].
  std::optional<double> geo_low, geo_high;
  // A sequence is left out if its mean of w - 1 - log w is above this.
  std::optional<double> k3_max;
  // Tokens of A < 0 are left out in sequences whose mean of lp_behav - lp_theta is above this.
  std::optional<double> opsm;
  // Bound of the second moment of the log-ratios that point away from the old policy.
  std::optional<double> m2po;
  std::string aggregation = "token_mean";  // A row of AggregationRows().
  double kl = 0;                           // Coefficient of KL(policy || reference). 0: off.
  // A row of KlRows(), or auto: k2+ if max_staleness is 0, else k3_is.
  std::string kl_kind = "auto";
  double entropy = 0;  // Coefficient of the entropy bonus. 0: off.
  // A row of EssRows(): how the learning rate follows the effective sample size.
  std::string ess_lr = "none";
  double ess_base = 1;        // Share of the samples from which on the learning rate is lowered.
  double stale_cap = 2;       // Cap of the weight w_stale of prox exact.
  double router_balance = 0;  // Coefficient of the load-balancing loss of experts. 0: off.

  bool operator==(const LossSpec&) const = default;
};

// Calls visit(name, field) for each field of a LossSpec. Names and order are those of
// sluice.job.v1.Loss, so that a parameter that is added here needs no other line to reach the loss.
template <typename Spec, typename Visitor>
void VisitLossFields(Spec& loss, const Visitor& visit) {
  visit("kind", loss.kind);
  visit("prox", loss.prox);
  visit("clip_low", loss.clip_low);
  visit("clip_high", loss.clip_high);
  visit("dual", loss.dual);
  visit("tis", loss.tis);
  visit("veto", loss.veto);
  visit("aggregation", loss.aggregation);
  visit("kl", loss.kl);
  visit("entropy", loss.entropy);
  visit("tis_level", loss.tis_level);
  visit("kl_kind", loss.kl_kind);
  visit("ewma", loss.ewma);
  visit("cispo_low", loss.cispo_low);
  visit("cispo_high", loss.cispo_high);
  visit("sapo_positive", loss.sapo_positive);
  visit("sapo_negative", loss.sapo_negative);
  visit("dppo_delta", loss.dppo_delta);
  visit("dppo_penalty", loss.dppo_penalty);
  visit("aepo_entropy", loss.aepo_entropy);
  visit("tis_low", loss.tis_low);
  visit("tis_outside", loss.tis_outside);
  visit("tis_normalize", loss.tis_normalize);
  visit("veto_high", loss.veto_high);
  visit("geo_low", loss.geo_low);
  visit("geo_high", loss.geo_high);
  visit("k3_max", loss.k3_max);
  visit("opsm", loss.opsm);
  visit("m2po", loss.m2po);
  visit("ess_lr", loss.ess_lr);
  visit("ess_base", loss.ess_base);
  visit("stale_cap", loss.stale_cap);
  visit("router_balance", loss.router_balance);
}

struct DistillSpec {
  std::string kind = "sampled";  // A row of DistillRows().
  double coef = 1;
  int64_t top_k = 0;                   // See DistillRule (distill.h).
  std::optional<double> trust_region;  // Unset: no token is left out.

  bool operator==(const DistillSpec&) const = default;
};

struct AlgorithmSpec {
  AdvantageSpec advantage;
  LossSpec loss;
  DistillSpec distill;  // Has an effect only if the job has a teacher.

  bool operator==(const AlgorithmSpec&) const = default;
};

}  // namespace sluice
