#include "common/algorithms/validate.h"

#include <cmath>

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

void CheckNumbers(const LossSpec& loss, Problems* problems) {
  const auto check = [&](absl::string_view field, double value, bool ok, absl::string_view wanted) {
    if (!ok || std::isnan(value))
      problems->push_back({std::string(field),
                           absl::StrCat(value, " is out of range; the value must be ", wanted)});
  };
  check("loss.clip_low", loss.clip_low, loss.clip_low >= 0 && loss.clip_low <= 1, "in [0, 1]");
  check("loss.clip_high", loss.clip_high, loss.clip_high >= 0, "0 or more");
  if (loss.dual)
    check("loss.dual", *loss.dual, *loss.dual > 1, "above 1; none turns the dual clip off");
  if (loss.tis) check("loss.tis", *loss.tis, *loss.tis > 0, "above 0; none sets all weights to 1");
  if (loss.veto)
    check("loss.veto", *loss.veto, *loss.veto > 0 && *loss.veto < 1,
          "in (0, 1); none turns the veto off");
  check("loss.kl", loss.kl, loss.kl >= 0, "0 or more");
  check("loss.entropy", loss.entropy, loss.entropy >= 0, "0 or more");
}

void CheckLossAgainstJob(const LossSpec& loss, const AlgorithmContext& context,
                         Problems* problems) {
  const Row<LossEntry>* kind = CheckName(LossRows(), "loss.kind", loss.kind, problems);
  const Row<ProxMode>* prox = CheckName(ProxRows(), "loss.prox", loss.prox, problems);
  CheckName(AggregationRows(), "loss.aggregation", loss.aggregation, problems);
  if (loss.tis) CheckName(WeightRows(), "loss.tis_level", loss.tis_level, problems);

  // Rules about several fields need known names.
  if (kind != nullptr && prox != nullptr && kind->value.has_ratio &&
      prox->value == ProxMode::kNone && loss.tis) {
    problems->push_back(
        {"loss.tis",
         absl::StrCat("with prox none, the ratio of loss ", loss.kind,
                      " already contains the off-policy correction; a weight would count it twice. "
                      "Set tis: none, or another prox")});
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

}  // namespace

std::vector<AlgorithmProblem> ValidateAlgorithm(const AlgorithmSpec& spec,
                                                const AlgorithmContext& context) {
  Problems problems;
  const Row<AdvantageRule>* advantage =
      CheckName(AdvantageRows(), "advantage.kind", spec.advantage.kind, &problems);
  CheckName(TruncationRows(), "advantage.truncated", spec.advantage.truncated, &problems);

  if (advantage != nullptr && context.group_size < 2) {
    problems.push_back({"advantage.kind",
                        absl::StrCat(advantage->name,
                                     " compares the members of a group, but rollout.group.size is ",
                                     context.group_size, ". Set it to 2 or more")});
  }

  CheckNumbers(spec.loss, &problems);
  CheckLossAgainstJob(spec.loss, context, &problems);
  return problems;
}

}  // namespace sluice
