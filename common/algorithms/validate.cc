#include "common/algorithms/validate.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/algorithms/registry.h"

namespace sluice {
namespace {

using Problems = std::vector<AlgorithmProblem>;

template <typename T>
std::string Names(absl::Span<const Row<T>> rows) {
  return absl::StrJoin(rows, ", ",
                       [](std::string* out, const Row<T>& row) { absl::StrAppend(out, row.name); });
}

// Returns the row named `name`, or adds a problem and returns null.
template <typename T>
const Row<T>* CheckName(absl::Span<const Row<T>> rows, absl::string_view field,
                        absl::string_view name, Problems* problems) {
  if (const Row<T>* row = FindRow(rows, name)) return row;
  problems->push_back(
      {std::string(field), absl::StrCat("unknown name \"", name, "\"; use one of ", Names(rows))});
  return nullptr;
}

void CheckNumbers(const AlgorithmSpec& spec, Problems* problems) {
  const LossSpec& loss = spec.loss;
  const auto check = [&](absl::string_view field, double value, bool ok, absl::string_view wanted) {
    if (!ok || std::isnan(value))
      problems->push_back({std::string(field),
                           absl::StrCat(value, " is out of range; the value must be ", wanted)});
  };
  check("advantage.kl", spec.advantage.kl, spec.advantage.kl >= 0, "0 or more");
  check("advantage.gamma", spec.advantage.gamma,
        spec.advantage.gamma > 0 && spec.advantage.gamma <= 1, "in (0, 1]");
  const AdvantageSpec& advantage = spec.advantage;
  check("advantage.lam", advantage.lam, advantage.lam >= 0 && advantage.lam <= 1, "in [0, 1]");
  if (advantage.lam_value)
    check("advantage.lam_value", *advantage.lam_value,
          *advantage.lam_value >= 0 && *advantage.lam_value <= 1, "in [0, 1]");
  if (advantage.lam_alpha)
    check("advantage.lam_alpha", *advantage.lam_alpha, *advantage.lam_alpha > 0,
          "above 0; none gives the advantages the lambda lam");
  if (advantage.kl_target)
    check("advantage.kl_target", *advantage.kl_target, *advantage.kl_target > 0,
          "above 0; none keeps kl as it is");
  check("advantage.kl_horizon", static_cast<double>(advantage.kl_horizon),
        advantage.kl_horizon >= 1, "1 or more");
  check("loss.clip_low", loss.clip_low, loss.clip_low >= 0 && loss.clip_low <= 1, "in [0, 1]");
  check("loss.clip_high", loss.clip_high, loss.clip_high >= 0, "0 or more");
  if (loss.dual)
    check("loss.dual", *loss.dual, *loss.dual > 1, "above 1; none turns the dual clip off");
  if (loss.tis) check("loss.tis", *loss.tis, *loss.tis > 0, "above 0; none sets all weights to 1");
  if (loss.veto)
    check("loss.veto", *loss.veto, *loss.veto > 0 && *loss.veto < 1,
          "in (0, 1); none turns the veto off");
  // A tis of 0 or less is a problem of its own.
  const bool below = !loss.tis || *loss.tis <= 0 || loss.tis_low < *loss.tis;
  check("loss.tis_low", loss.tis_low, loss.tis_low >= 0 && below, "0 or more, and below loss.tis");
  if (loss.veto_high)
    check("loss.veto_high", *loss.veto_high, *loss.veto_high > 1,
          "above 1; none turns this veto off");
  if (loss.geo_low)
    check("loss.geo_low", *loss.geo_low, *loss.geo_low > 0 && *loss.geo_low <= 1,
          "in (0, 1]; none turns this bound off");
  if (loss.geo_high)
    check("loss.geo_high", *loss.geo_high, *loss.geo_high >= 1,
          "1 or more; none turns this bound off");
  if (loss.k3_max)
    check("loss.k3_max", *loss.k3_max, *loss.k3_max > 0, "above 0; none turns this mask off");
  if (loss.opsm) check("loss.opsm", *loss.opsm, *loss.opsm >= 0, "0 or more; none turns it off");
  if (loss.m2po) check("loss.m2po", *loss.m2po, *loss.m2po > 0, "above 0; none turns it off");
  check("loss.cispo_low", loss.cispo_low, loss.cispo_low >= 0, "0 or more");
  check("loss.cispo_high", loss.cispo_high, loss.cispo_high > loss.cispo_low,
        "above loss.cispo_low");
  check("loss.sapo_positive", loss.sapo_positive, loss.sapo_positive > 0, "above 0");
  check("loss.sapo_negative", loss.sapo_negative, loss.sapo_negative > 0, "above 0");
  check("loss.dppo_delta", loss.dppo_delta, loss.dppo_delta > 0, "above 0");
  check("loss.dppo_penalty", loss.dppo_penalty, loss.dppo_penalty > 0, "above 0");
  check("loss.aepo_entropy", loss.aepo_entropy, loss.aepo_entropy > 0, "above 0");
  check("loss.ewma", loss.ewma, loss.ewma > 0 && loss.ewma < 1, "in (0, 1)");
  check("loss.stale_cap", loss.stale_cap, loss.stale_cap >= 1, "1 or more");
  check("loss.kl", loss.kl, loss.kl >= 0, "0 or more");
  check("loss.entropy", loss.entropy, loss.entropy >= 0, "0 or more");
  check("loss.router_balance", loss.router_balance, loss.router_balance >= 0, "0 or more");
  check("loss.ess_base", loss.ess_base, loss.ess_base > 0 && loss.ess_base <= 1, "in (0, 1]");
}

// CheckEffects() of the advantage.
template <typename Unused>
void CheckAdvantageEffects(const AdvantageSpec& spec, const Unused& unused) {
  const Row<AdvantageRule>* row = FindRow(AdvantageRows(), spec.kind);
  const bool gae = row == nullptr || NeedsCritic(row->value);
  const bool returns = row == nullptr || row->value.tokens == TokenRule::kReturns;
  const AdvantageSpec plain;
  const auto only_gae = [&](absl::string_view field, bool changed) {
    unused(absl::StrCat("advantage.", field), changed, gae, "advantage.kind: gae");
  };
  unused("advantage.gamma", spec.gamma != 1, gae || returns, "advantage.kind: gae or reinforce_pp");
  only_gae("lam", spec.lam != plain.lam);
  only_gae("lam_value", spec.lam_value.has_value());
  only_gae("lam_alpha", spec.lam_alpha.has_value());
  only_gae("raw", spec.raw);
  only_gae("bootstrap_truncated", spec.bootstrap_truncated);
  unused("advantage.lam", gae && spec.lam != plain.lam, !spec.lam_value || !spec.lam_alpha,
         "lam_value: none or lam_alpha: none, which otherwise give both lambdas");
  unused("advantage.bootstrap_truncated", gae && spec.bootstrap_truncated,
         spec.truncated != "filter",
         "advantage.truncated: keep or penalty, because filter does not train such answers");
  unused("advantage.kl_target", spec.kl_target.has_value(), spec.kl > 0, "advantage.kl above 0");
  unused("advantage.kl_horizon", spec.kl_horizon != plain.kl_horizon, spec.kl_target.has_value(),
         "advantage.kl_target");
}

// A value that differs from the default, although nothing reads it, is a mistake: whoever has
// written it believes that it has an effect.
void CheckEffects(const AlgorithmSpec& spec, Problems* problems) {
  const LossSpec& loss = spec.loss;
  const LossSpec plain;
  const auto unused = [&](absl::string_view field, bool changed, bool read,
                          absl::string_view reader) {
    if (changed && !read)
      problems->push_back({std::string(field), absl::StrCat("has an effect only with ", reader,
                                                            "; leave it out, or set that")});
  };
  const auto only_loss = [&](absl::string_view field, bool changed, absl::string_view kind) {
    unused(absl::StrCat("loss.", field), changed, loss.kind == kind,
           absl::StrCat("loss.kind: ", kind));
  };
  only_loss("cispo_low", loss.cispo_low != plain.cispo_low, "cispo");
  only_loss("cispo_high", loss.cispo_high != plain.cispo_high, "cispo");
  only_loss("sapo_positive", loss.sapo_positive != plain.sapo_positive, "sapo");
  only_loss("sapo_negative", loss.sapo_negative != plain.sapo_negative, "sapo");
  only_loss("dppo_delta", loss.dppo_delta != plain.dppo_delta, "dppo_tv");
  only_loss("dppo_penalty", loss.dppo_penalty != plain.dppo_penalty, "dppo_tv");
  only_loss("aepo_entropy", loss.aepo_entropy != plain.aepo_entropy, "aepo");
  unused("loss.ewma", loss.ewma != plain.ewma, loss.prox == "ewma", "loss.prox: ewma");
  unused("loss.stale_cap", loss.stale_cap != plain.stale_cap, loss.prox == "exact",
         "loss.prox: exact");
  unused("loss.tis_low", loss.tis_low != 0, loss.tis.has_value(), "loss.tis");
  unused("loss.tis_outside", loss.tis_outside != plain.tis_outside, loss.tis.has_value(),
         "loss.tis");
  unused("loss.tis_normalize", loss.tis_normalize, loss.tis.has_value(), "loss.tis");
  unused("loss.ess_base", loss.ess_base != 1, loss.ess_lr != "none", "loss.ess_lr");
  CheckAdvantageEffects(spec.advantage, unused);
}

void CheckLossAgainstJob(const LossSpec& loss, const AlgorithmContext& context,
                         Problems* problems) {
  const Row<LossEntry>* kind = CheckName(LossRows(), "loss.kind", loss.kind, problems);
  const Row<ProxMode>* prox = CheckName(ProxRows(), "loss.prox", loss.prox, problems);
  CheckName(AggregationRows(), "loss.aggregation", loss.aggregation, problems);
  if (loss.tis) CheckName(WeightRows(), "loss.tis_level", loss.tis_level, problems);
  CheckName(OutsideRows(), "loss.tis_outside", loss.tis_outside, problems);
  CheckName(EssRows(), "loss.ess_lr", loss.ess_lr, problems);

  // Rules about several fields need known names.
  if (kind != nullptr && prox != nullptr && kind->value.behaviour_anchor &&
      prox->value != ProxMode::kNone) {
    problems->push_back(
        {"loss.prox", absl::StrCat("loss ", loss.kind,
                                   " measures the change since the tokens were sampled, so its "
                                   "anchor is the behaviour policy. Set prox: none")});
  }
  if (kind != nullptr && kind->value.sequence_ratio && loss.aggregation != "seq_mean_token_mean") {
    problems->push_back(
        {"loss.aggregation",
         absl::StrCat(loss.aggregation, " weights sequences by their lengths, but loss ", loss.kind,
                      " has one ratio per sequence. Set aggregation: seq_mean_token_mean")});
  }
  if (kind != nullptr && prox != nullptr && kind->value.has_ratio &&
      prox->value == ProxMode::kNone && loss.tis) {
    problems->push_back(
        {"loss.tis",
         absl::StrCat("with prox none, the ratio of loss ", loss.kind,
                      " already contains the off-policy correction; a weight would count it twice. "
                      "Set tis: none, or another prox")});
  }

  if (prox != nullptr && prox->value == ProxMode::kExact && !loss.tis) {
    problems->push_back({"loss.prox",
                         "exact divides importance weights into mismatch and staleness, but with "
                         "tis: none all weights are 1. Set loss.tis, or prox: recompute"});
  }
  if (prox != nullptr && prox->value == ProxMode::kSelf && context.minibatches > 1) {
    problems->push_back(
        {"loss.prox",
         absl::StrCat(
             "self needs one optimizer step per batch, but trainer.batching.minibatches is ",
             context.minibatches, ". Set prox: recompute, or minibatches: 1")});
  }

  if (loss.kl_kind != "auto") {
    const Row<KlEntry>* kl = CheckName(KlRows(), "loss.kl_kind", loss.kl_kind, problems);
    if (kl != nullptr && !kl->value.as_loss) {
      problems->push_back(
          {"loss.kl_kind", absl::StrCat(loss.kl_kind,
                                        " has an expected gradient of 0 and cannot be a loss. "
                                        "Set k2+ (on-policy data) or k3_is (stale data)")});
    }
  }

  if (loss.kl > 0 && !context.has_reference) {
    problems->push_back(
        {"loss.kl",
         absl::StrCat(loss.kl, " needs a reference model. Set model.reference, or kl: 0")});
  }
}

void CheckAdvantage(const AlgorithmSpec& spec, const AlgorithmContext& context,
                    Problems* problems) {
  const Row<AdvantageRule>* advantage =
      CheckName(AdvantageRows(), "advantage.kind", spec.advantage.kind, problems);
  CheckName(TruncationRows(), "advantage.truncated", spec.advantage.truncated, problems);
  if (spec.advantage.kl > 0 && !context.has_reference) {
    problems->push_back(
        {"advantage.kl", absl::StrCat(spec.advantage.kl,
                                      " needs a reference model. Set model.reference, or kl: 0")});
  }
  if (advantage == nullptr) return;

  if (NeedsGroup(advantage->value) && context.group_size < 2) {
    problems->push_back(
        {"advantage.kind",
         absl::StrCat(advantage->name,
                      " compares the members of a group, but rollout.group.size is ",
                      context.group_size, ". Set it to 2 or more")});
  }
  if (advantage->value.scale == Scale::kGroupMean &&
      (spec.advantage.truncated == "penalty" || spec.advantage.kl > 0)) {
    problems->push_back({"advantage.kind",
                         absl::StrCat(advantage->name, " divides by the mean reward, which ",
                                      spec.advantage.kl > 0 ? "advantage.kl" : "truncated: penalty",
                                      " can make negative. Set another kind, or leave that out")});
  }
  if (spec.advantage.duration_aware &&
      (advantage->value.min_variance || IgnoresRewards(advantage->value))) {
    problems->push_back(
        {"advantage.duration_aware",
         absl::StrCat(
             "true: advantage.kind ", advantage->name,
             IgnoresRewards(advantage->value)
                 ? " gives all tokens the advantage 0, which no factor changes"
                 : " finds its baseline from the gradients of whole answers, so that the turns of "
                   "one answer cannot have different factors",
             ". Set another kind, or leave duration_aware out")});
  }
  if (!advantage->value.min_variance) return;
  if (spec.loss.router_balance > 0) {
    problems->push_back(
        {"loss.router_balance",
         absl::StrCat(spec.loss.router_balance,
                      " is a loss of the whole batch, but advantage.kind ", advantage->name,
                      " weighs the gradient of each answer by itself. Set it to 0, or another "
                      "kind")});
  }
  if (spec.loss.kind != "reinforce") {
    problems->push_back(
        {"loss.kind", absl::StrCat(spec.loss.kind, ": advantage.kind ", advantage->name,
                                   " needs a loss whose gradient is proportional to the "
                                   "advantage. Set loss.kind: reinforce")});
  }
  for (const auto& [field, mask] :
       {std::pair("loss.opsm", &spec.loss.opsm), std::pair("loss.m2po", &spec.loss.m2po)}) {
    if (!mask->has_value()) continue;
    problems->push_back(
        {field, absl::StrCat("depends on the signs of the advantages, which advantage.kind ",
                             advantage->name, " knows only after the gradients. Set it to none")});
  }
}

// What a teacher's part of the advantages, which is known only together with the gradients, is too
// late for.
void CheckDistilledAdvantages(const AlgorithmSpec& spec, Problems* problems) {
  const Row<AdvantageRule>* advantage = FindRow(AdvantageRows(), spec.advantage.kind);
  const Row<LossEntry>* loss = FindRow(LossRows(), spec.loss.kind);
  const auto refuse = [&](absl::string_view field, absl::string_view value) {
    problems->push_back(
        {std::string(field),
         absl::StrCat(value,
                      " needs the advantages before the gradients, but distill.kind sampled "
                      "adds the teacher's part to them later. Set distill.kind: full, or "
                      "another ",
                      field)});
  };
  if (advantage != nullptr && advantage->value.min_variance)
    refuse("advantage.kind", advantage->name);
  if (loss != nullptr && loss->value.entropy_factors) refuse("loss.kind", loss->name);
  if (spec.advantage.duration_aware && (advantage == nullptr || !IgnoresRewards(advantage->value)))
    refuse("advantage.duration_aware", "true");
  if (spec.loss.m2po) refuse("loss.m2po", absl::StrCat(*spec.loss.m2po));
}

void CheckDistill(const AlgorithmSpec& spec, const AlgorithmContext& context, Problems* problems) {
  const DistillSpec& distill = spec.distill;
  const DistillSpec plain;
  const Row<AdvantageRule>* advantage = FindRow(AdvantageRows(), spec.advantage.kind);
  const bool pure = advantage != nullptr && IgnoresRewards(advantage->value);
  const auto add = [&](absl::string_view field, auto... text) {
    problems->push_back({std::string(field), absl::StrCat(text...)});
  };
  if (pure) {
    if (!context.has_teacher)
      add("advantage.kind", advantage->name,
          " learns nothing from rewards, and there is no teacher to learn from. Set model.teacher");
    for (const auto& [field, given] :
         {std::pair("advantage.group_filter", spec.advantage.signal_filter),
          std::pair("advantage.truncated", spec.advantage.truncated == "penalty"),
          std::pair("advantage.kl", spec.advantage.kl > 0)}) {
      if (given)
        add(field, "looks at or changes rewards, but advantage.kind ", advantage->name,
            " learns nothing from them; leave it out");
    }
  }

  if (!context.has_teacher) {
    for (const auto& [field, changed] :
         {std::pair("distill.kind", distill.kind != plain.kind),
          std::pair("distill.coef", distill.coef != plain.coef),
          std::pair("distill.top_k", distill.top_k != plain.top_k),
          std::pair("distill.trust_region", distill.trust_region != plain.trust_region)}) {
      if (changed) add(field, "has an effect only with model.teacher; leave it out, or set that");
    }
    return;
  }

  const Row<DistillKind>* kind = CheckName(DistillRows(), "distill.kind", distill.kind, problems);
  if (!(distill.coef > 0))
    add("distill.coef", distill.coef,
        " is out of range; the value must be above 0. To learn nothing from a teacher, leave "
        "model.teacher out");
  if (distill.top_k < 0 || distill.top_k == 1)
    add("distill.top_k", distill.top_k,
        " is out of range; the value must be 0 (the whole vocabulary) or at least 2: one token "
        "alone always has probability 1");
  if (distill.trust_region && !(*distill.trust_region > 0))
    add("distill.trust_region", *distill.trust_region,
        " is out of range; the value must be above 0; none turns it off");
  if (kind == nullptr || kind->value != DistillKind::kSampled) return;
  if (distill.top_k != 0)
    add("distill.top_k", "has an effect only with distill.kind: full; leave it out, or set that");
  CheckDistilledAdvantages(spec, problems);
}

}  // namespace

std::vector<AlgorithmProblem> ValidateAlgorithm(const AlgorithmSpec& spec,
                                                const AlgorithmContext& context) {
  Problems problems;
  CheckAdvantage(spec, context, &problems);
  CheckNumbers(spec, &problems);
  CheckLossAgainstJob(spec.loss, context, &problems);
  CheckEffects(spec, &problems);
  CheckDistill(spec, context, &problems);
  return problems;
}

}  // namespace sluice
