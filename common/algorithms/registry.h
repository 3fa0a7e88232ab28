#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/algorithms/advantage.h"
#include "common/algorithms/aggregation.h"
#include "common/algorithms/correction.h"
#include "common/algorithms/distill.h"
#include "common/algorithms/kl.h"
#include "common/algorithms/losses/ppo_clip.h"
#include "common/algorithms/policy_loss.h"
#include "common/algorithms/ratio.h"
#include "common/algorithms/shaping.h"
#include "common/algorithms/spec.h"

namespace sluice {

// Every name that a job's `algorithm` block may use, with what it stands for. A new algorithm is a
// file and a row here. The tests fail for a row without an oracle in tests/common/algorithms.

// One name of a registry, with what it stands for.
template <typename T>
struct Row {
  absl::string_view name;
  absl::string_view doc;  // One line, for people.
  T value;
};

struct LossEntry {
  TokenLoss (*make)(const LossSpec& spec);
  // The loss contains the update ratio x. With prox none, x contains the whole correction already,
  // so that no weight may be applied on top.
  bool has_ratio = true;
  bool sequence_ratio = false;    // x is the geometric mean of the sequence's ratios.
  bool behaviour_anchor = false;  // x must be the ratio to the behaviour policy.
  bool proportional = true;       // The loss is proportional to the advantage.
  bool entropy_factors = false;   // The advantages are multiplied by AepoFactors() (losses/aepo.h).
  // The bounds whose use is counted, or null if x has none.
  ClipRule (*clip)(const LossSpec& spec) = nullptr;
  // Sets the values that this loss wants where a job file names the loss and does not set them.
  void (*defaults)(LossSpec& spec) = nullptr;
};
// How the learning rate follows the share q = ESS / B of the samples that are effective (arXiv
// 2602.17616): lr * min(1, q / ess_base)^power. 0: not at all.
struct EssEntry {
  double power;
};
struct KlEntry {
  KlFunction function;
  bool as_loss;  // It may be used as a loss, that is be differentiated.
};

// The rows of each registry.
absl::Span<const Row<AdvantageRule>> AdvantageRows();
absl::Span<const Row<LossEntry>> LossRows();
absl::Span<const Row<ProxMode>> ProxRows();
absl::Span<const Row<WeightLevel>> WeightRows();
absl::Span<const Row<WeightOutside>> OutsideRows();
absl::Span<const Row<EssEntry>> EssRows();
absl::Span<const Row<Aggregation>> AggregationRows();
absl::Span<const Row<KlEntry>> KlRows();
absl::Span<const Row<Truncation>> TruncationRows();
absl::Span<const Row<DistillKind>> DistillRows();

// The row with this name, or null if there is none.
template <typename T>
const Row<T>* FindRow(absl::Span<const Row<T>> rows, absl::string_view name) {
  for (const Row<T>& row : rows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

// A LossSpec with its names looked up. The trainer works with this.
struct LossRule {
  TokenLoss loss;
  ProxMode prox = ProxMode::kRecompute;
  double ewma = 0;  // Decay of the averaged weights; only for ProxMode::kEwma.
  // The counts of clipped tokens: no bounds count nothing.
  std::optional<ClipRule> clip;
  bool sequence_ratio = false;  // LossEntry::sequence_ratio.
  CorrectionRule correction;
  bool normalize_weights = false;  // The weights are divided by their mean over the step.
  double m2po = 0;                 // Bound of m2po.h; 0: off.
  double entropy_factor = 0;       // Strength of AepoFactors(); 0: off.
  Aggregation aggregation;
  KlFunction kl = nullptr;  // Null if kl_coef is 0.
  double kl_coef = 0;
  double entropy_coef = 0;
  double ess_power = 0;  // EssEntry::power.
  double ess_base = 1;
  double router_balance = 0;  // Coefficient of the load-balancing loss; 0: off.
  DistillRule distill;        // Not of a LossSpec: the trainer sets it if the job has a teacher.
};

// Looks up the names of a spec. `max_staleness` decides what kl_kind auto means.
// INVALID_ARGUMENT: a name is unknown; the message lists the known ones.
absl::StatusOr<LossRule> ResolveLoss(const LossSpec& spec, int64_t max_staleness);
absl::StatusOr<AdvantageRule> ResolveAdvantage(const AdvantageSpec& spec);
absl::StatusOr<Truncation> ResolveTruncation(const AdvantageSpec& spec);
absl::StatusOr<DistillRule> ResolveDistill(const DistillSpec& spec);

}  // namespace sluice
