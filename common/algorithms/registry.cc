#include "common/algorithms/registry.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/algorithms/losses/aepo.h"
#include "common/algorithms/losses/cispo.h"
#include "common/algorithms/losses/dppo_tv.h"
#include "common/algorithms/losses/gspo.h"
#include "common/algorithms/losses/reinforce.h"
#include "common/algorithms/losses/sapo.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr Row<AdvantageRule> kAdvantages[] = {
    {"grpo",
     "reward standardised within its group (arXiv 2402.03300)",
     {Centre::kGroup, Scale::kGroup}},
    {"dr_grpo", "reward minus the group's mean (arXiv 2503.20783)", {Centre::kGroup, Scale::kNone}},
    {"rloo",
     "reward minus the mean of the group's other members (arXiv 2402.14740)",
     {Centre::kGroupLoo, Scale::kNone}},
    {"pool_loo",
     "leave-one-out centre, one scale pooled over all groups of the step",
     {Centre::kGroupLoo, Scale::kPooled}},
    {"lite_ppo",
     "group centre, scale over the step (arXiv 2508.08221)",
     {Centre::kGroup, Scale::kBatch}},
    {"maxrl",
     "reward minus the group's mean, divided by that mean; for rewards of 0 or more (arXiv "
     "2602.02710)",
     {Centre::kGroup, Scale::kGroupMean}},
    {"reinforce", "the reward itself", {Centre::kNone, Scale::kNone}},
    {"batch", "reward standardised over the step", {Centre::kBatch, Scale::kBatch}},
    {"reinforce_pp",
     "discounted return of each token, whitened over the step's tokens (arXiv 2501.03262)",
     {Centre::kNone, Scale::kNone, TokenRule::kReturns}},
    {"reinforce_pp_baseline",
     "reward minus the group's mean, whitened over the step's tokens (arXiv 2501.03262)",
     {Centre::kGroup, Scale::kNone, TokenRule::kWhitened}},
    {"gae",
     "each token's advantage over the values of a critic, which is trained too (arXiv 1506.02438)",
     {Centre::kNone, Scale::kNone, TokenRule::kGae}},
    {"min_variance",
     "baseline that minimises the variance of the gradient; one backward pass per answer (arXiv "
     "2602.17616)",
     {Centre::kGroup, Scale::kGroupPopulation, TokenRule::kSame, true}},
    {"none",
     "0: nothing is learned from rewards, only from a teacher",
     {Centre::kNone, Scale::kZero}},
};

constexpr Row<LossEntry> kLosses[] = {
    {"reinforce",
     "plain policy gradient; with tis, importance weighted",
     {.make = MakeReinforce, .has_ratio = false}},
    {"ppo",
     "ratio clipped to [1 - clip_low, 1 + clip_high] (arXiv 1707.06347)",
     {.make = MakePpoClip, .clip = ClipRuleOf}},
    {"dapo",
     "ppo, meant for clip_high above clip_low (arXiv 2503.14476)",
     {.make = MakePpoClip, .clip = ClipRuleOf}},
    {"gspo",
     "ppo on the geometric mean of the sequence's ratios (arXiv 2507.18071)",
     {.make = MakeGspo, .sequence_ratio = true, .clip = GspoClip, .defaults = GspoDefaults}},
    {"cispo",
     "the ratio, clipped to [cispo_low, cispo_high], as a weight of the policy gradient (arXiv "
     "2506.13585)",
     {.make = MakeCispo, .clip = CispoClip, .defaults = CispoDefaults}},
    {"sapo",
     "a smooth gate in place of the clip (arXiv 2511.20347)",
     {.make = MakeSapo, .defaults = SapoDefaults}},
    {"aepo",
     "ppo that keeps the gradient above clip_high, with advantages balanced by entropy (arXiv "
     "2510.14545)",
     {.make = MakeAepo, .entropy_factors = true, .clip = ClipRuleOf, .defaults = AepoDefaults}},
    {"dppo_tv",
     "drops tokens whose probability has moved by more than dppo_delta; needs prox none (arXiv "
     "2602.04879)",
     {.make = MakeDppoTv,
      .behaviour_anchor = true,
      .proportional = false,
      .defaults = DppoTvDefaults}},
};

constexpr Row<ProxMode> kProx[] = {
    {"none", "the behaviour policy is the anchor", ProxMode::kNone},
    {"self", "the current policy is its own anchor; one optimizer step per batch", ProxMode::kSelf},
    {"recompute", "one forward pass before the first update of a batch (arXiv 2505.24298)",
     ProxMode::kRecompute},
    {"loglinear",
     "between the behaviour and the current policy, by the token's staleness; no forward pass "
     "(arXiv 2512.06547)",
     ProxMode::kLoglinear},
    {"ewma",
     "a running average of the weights, which takes memory for a second model (arXiv "
     "2110.00641)",
     ProxMode::kEwma},
    {"exact",
     "recompute, and a forward pass under each version that sampled tokens, which are kept in "
     "memory: tis, tis_low, veto and the like then bound what trainer and rollout disagree about, "
     "and stale_cap the staleness (arXiv 2605.12070)",
     ProxMode::kExact},
};

constexpr Row<WeightLevel> kWeights[] = {
    {"token", "one importance weight per token, at most tis", WeightLevel::kToken},
    {"sequence", "one importance weight per sequence, at most tis", WeightLevel::kSequence},
};

constexpr Row<WeightOutside> kOutside[] = {
    {"clip", "a weight outside of [tis_low, tis] becomes the bound", WeightOutside::kClip},
    {"drop",
     "tokens whose weight is outside of [tis_low, tis] are left out (IcePop, arXiv 2510.18855)",
     WeightOutside::kDrop},
};

constexpr Row<EssEntry> kEss[] = {
    {"none", "the learning rate is that of the schedule", {0}},
    {"sqrt", "times the square root of the effective share of the samples", {0.5}},
    {"linear", "times the effective share of the samples", {1}},
};

constexpr Row<KlEntry> kKl[] = {
    {"k1", "lp - lp_ref; for logging, never a loss", {KlK1, false}},
    {"k2", "(lp - lp_ref)^2 / 2", {KlK2, true}},
    {"k3",
     "exp(lp_ref - lp) - 1 + lp - lp_ref; biased as a loss, as in GRPO's paper",
     {KlK3, true}},
    {"k2+", "value of k3, gradient of k2; for on-policy data", {KlK2Plus, true}},
    {"k3_is", "k3 weighted by the importance ratio; for stale data", {KlK3Is, true}},
};

constexpr Row<Truncation> kTruncation[] = {
    {"keep", "answers cut at the length cap are trained on", Truncation::kKeep},
    {"filter",
     "answers cut at the length cap are not trained on, but count in their group's statistics",
     Truncation::kFilter},
    {"penalty", "answers near the cap lose up to 1 of reward (arXiv 2503.14476)",
     Truncation::kPenalty},
};

constexpr Row<DistillKind> kDistill[] = {
    {"sampled", "advantages get lp_teacher - lp of each sampled token (arXiv 2601.02780)",
     DistillKind::kSampled},
    {"full",
     "a term of the loss: the KL between the distributions of policy and teacher at each token",
     DistillKind::kFull},
};

template <typename T>
absl::StatusOr<T> Resolve(absl::Span<const Row<T>> rows, absl::string_view field,
                          absl::string_view name) {
  if (const Row<T>* row = FindRow(rows, name)) return row->value;
  return absl::InvalidArgumentError(absl::StrCat(
      "algorithm.", field, ": unknown name \"", name, "\"; use one of ",
      absl::StrJoin(rows, ", ",
                    [](std::string* out, const Row<T>& row) { absl::StrAppend(out, row.name); })));
}

}  // namespace

absl::Span<const Row<AdvantageRule>> AdvantageRows() { return kAdvantages; }
absl::Span<const Row<LossEntry>> LossRows() { return kLosses; }
absl::Span<const Row<ProxMode>> ProxRows() { return kProx; }
absl::Span<const Row<WeightLevel>> WeightRows() { return kWeights; }
absl::Span<const Row<WeightOutside>> OutsideRows() { return kOutside; }
absl::Span<const Row<EssEntry>> EssRows() { return kEss; }
absl::Span<const Row<Aggregation>> AggregationRows() {
  static const Row<Aggregation> rows[] = {
      {"token_mean", "mean over all tokens of the step", kTokenMean},
      {"seq_mean_token_mean", "mean over sequences of the mean over tokens", kSeqMeanTokenMean},
      {"seq_mean_token_sum", "mean over sequences of the sum over tokens", kSeqMeanTokenSum},
      {"fixed_length", "sum over tokens / (sequences x max_response)", kFixedLength},
      {"prompt_mean", "mean over prompts of the mean over their tokens", kPromptMean},
  };
  return rows;
}
absl::Span<const Row<KlEntry>> KlRows() { return kKl; }
absl::Span<const Row<Truncation>> TruncationRows() { return kTruncation; }
absl::Span<const Row<DistillKind>> DistillRows() { return kDistill; }

absl::StatusOr<LossRule> ResolveLoss(const LossSpec& spec, int64_t max_staleness) {
  LossRule rule;
  SLUICE_ASSIGN_OR_RETURN(const LossEntry loss, Resolve(LossRows(), "loss.kind", spec.kind));
  rule.loss = loss.make(spec);
  rule.sequence_ratio = loss.sequence_ratio;
  if (loss.clip != nullptr) rule.clip = loss.clip(spec);
  if (loss.entropy_factors) rule.entropy_factor = spec.aepo_entropy;
  SLUICE_ASSIGN_OR_RETURN(rule.prox, Resolve(ProxRows(), "loss.prox", spec.prox));
  if (rule.prox == ProxMode::kEwma) rule.ewma = spec.ewma;
  SLUICE_ASSIGN_OR_RETURN(rule.aggregation,
                          Resolve(AggregationRows(), "loss.aggregation", spec.aggregation));

  constexpr double kOff = CorrectionRule::kOff;
  // A loss without a ratio must get the whole correction from its weights.
  rule.correction = {.level = WeightLevel::kNone,
                     .low = spec.tis_low,
                     .cap = spec.tis.value_or(kOff),
                     .veto = spec.veto.value_or(0),
                     .veto_high = spec.veto_high.value_or(kOff),
                     .geo_low = spec.geo_low.value_or(0),
                     .geo_high = spec.geo_high.value_or(kOff),
                     .k3_max = spec.k3_max.value_or(kOff),
                     .opsm = spec.opsm.value_or(kOff),
                     .total_ratio = !loss.has_ratio,
                     .split = rule.prox == ProxMode::kExact,
                     .stale_cap = spec.stale_cap};
  SLUICE_ASSIGN_OR_RETURN(rule.correction.outside,
                          Resolve(OutsideRows(), "loss.tis_outside", spec.tis_outside));
  if (spec.tis.has_value()) {
    SLUICE_ASSIGN_OR_RETURN(rule.correction.level,
                            Resolve(WeightRows(), "loss.tis_level", spec.tis_level));
    rule.normalize_weights = spec.tis_normalize;
  }
  rule.m2po = spec.m2po.value_or(0);

  if (spec.kl > 0) {
    const std::string kind = spec.kl_kind != "auto" ? spec.kl_kind
                             : max_staleness == 0   ? "k2+"
                                                    : "k3_is";
    SLUICE_ASSIGN_OR_RETURN(KlEntry kl, Resolve(KlRows(), "loss.kl_kind", kind));
    rule.kl = kl.function;
  }

  rule.kl_coef = spec.kl;
  rule.entropy_coef = spec.entropy;
  SLUICE_ASSIGN_OR_RETURN(const EssEntry ess, Resolve(EssRows(), "loss.ess_lr", spec.ess_lr));
  rule.ess_power = ess.power;
  rule.ess_base = spec.ess_base;
  rule.router_balance = spec.router_balance;
  return rule;
}

absl::StatusOr<AdvantageRule> ResolveAdvantage(const AdvantageSpec& spec) {
  SLUICE_ASSIGN_OR_RETURN(AdvantageRule rule,
                          Resolve(AdvantageRows(), "advantage.kind", spec.kind));
  rule.whiten = !spec.raw;
  rule.duration_aware = spec.duration_aware;
  return rule;
}

absl::StatusOr<Truncation> ResolveTruncation(const AdvantageSpec& spec) {
  return Resolve(TruncationRows(), "advantage.truncated", spec.truncated);
}

absl::StatusOr<DistillRule> ResolveDistill(const DistillSpec& spec) {
  SLUICE_ASSIGN_OR_RETURN(const DistillKind kind,
                          Resolve(DistillRows(), "distill.kind", spec.kind));
  return DistillRule{.kind = kind,
                     .coef = spec.coef,
                     .top_k = spec.top_k,
                     .trust_region = spec.trust_region.value_or(CorrectionRule::kOff)};
}

}  // namespace sluice
