#include "common/algorithms/registry.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/algorithms/losses/reinforce.h"
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
};

constexpr Row<LossEntry> kLosses[] = {
    {"reinforce", "plain policy gradient; with tis, importance weighted", {MakeReinforce, false}},
    {"ppo",
     "ratio clipped to [1 - clip_low, 1 + clip_high] (arXiv 1707.06347)",
     {MakePpoClip, true}},
    {"dapo", "ppo, meant for clip_high above clip_low (arXiv 2503.14476)", {MakePpoClip, true}},
};

constexpr Row<ProxMode> kProx[] = {
    {"none", "the behaviour policy is the anchor", ProxMode::kNone},
    {"self", "the current policy is its own anchor; one optimizer step per batch", ProxMode::kSelf},
    {"recompute", "one forward pass before the first update of a batch (arXiv 2505.24298)",
     ProxMode::kRecompute},
};

constexpr Row<WeightLevel> kWeights[] = {
    {"token", "one importance weight per token, at most tis", WeightLevel::kToken},
    {"sequence", "one importance weight per sequence, at most tis", WeightLevel::kSequence},
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

absl::StatusOr<LossRule> ResolveLoss(const LossSpec& spec, int64_t max_staleness) {
  LossRule rule;
  SLUICE_ASSIGN_OR_RETURN(const LossEntry loss, Resolve(LossRows(), "loss.kind", spec.kind));
  rule.loss = loss.make(spec);
  rule.has_ratio = loss.has_ratio;
  SLUICE_ASSIGN_OR_RETURN(rule.prox, Resolve(ProxRows(), "loss.prox", spec.prox));
  SLUICE_ASSIGN_OR_RETURN(rule.aggregation,
                          Resolve(AggregationRows(), "loss.aggregation", spec.aggregation));

  rule.clip = ClipRuleOf(spec);
  // A loss without a ratio must get the whole correction from its weights.
  rule.correction = {.level = WeightLevel::kNone,
                     .cap = spec.tis.value_or(std::numeric_limits<double>::infinity()),
                     .veto = spec.veto.value_or(0),
                     .total_ratio = !rule.has_ratio};
  if (spec.tis.has_value()) {
    SLUICE_ASSIGN_OR_RETURN(rule.correction.level,
                            Resolve(WeightRows(), "loss.tis_level", spec.tis_level));
  }

  if (spec.kl > 0) {
    const std::string kind = spec.kl_kind != "auto" ? spec.kl_kind
                             : max_staleness == 0   ? "k2+"
                                                    : "k3_is";
    SLUICE_ASSIGN_OR_RETURN(KlEntry kl, Resolve(KlRows(), "loss.kl_kind", kind));
    rule.kl = kl.function;
  }

  rule.kl_coef = spec.kl;
  rule.entropy_coef = spec.entropy;
  return rule;
}

absl::StatusOr<AdvantageRule> ResolveAdvantage(const AdvantageSpec& spec) {
  return Resolve(AdvantageRows(), "advantage.kind", spec.kind);
}

absl::StatusOr<Truncation> ResolveTruncation(const AdvantageSpec& spec) {
  return Resolve(TruncationRows(), "advantage.truncated", spec.truncated);
}

}  // namespace sluice
