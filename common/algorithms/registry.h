#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/algorithms/advantage.h"
#include "common/algorithms/aggregation.h"
#include "common/algorithms/correction.h"
#include "common/algorithms/kl.h"
#include "common/algorithms/policy_loss.h"
#include "common/algorithms/ratio.h"
#include "common/algorithms/shaping.h"
#include "common/algorithms/spec.h"

namespace sluice {

// Every name a job's `algorithm` block may say, with what it stands for. A new algorithm is a file
// and a row; a row without an oracle in tests/common/algorithms fails the tests.

template <typename T>
struct Row {
  absl::string_view name;
  absl::string_view doc;  // One line.
  T value;
};

struct LossEntry {
  LossFunction function;
  // x enters the loss: with prox none the correction is in it already, and no weight may come on
  // top.
  bool has_ratio;
};
struct KlEntry {
  KlFunction function;
  bool as_loss;  // May be differentiated.
};

absl::Span<const Row<AdvantageRule>> AdvantageRows();
absl::Span<const Row<LossEntry>> LossRows();
absl::Span<const Row<ProxMode>> ProxRows();
absl::Span<const Row<WeightLevel>> WeightRows();
absl::Span<const Row<Aggregation>> AggregationRows();
absl::Span<const Row<KlEntry>> KlRows();
absl::Span<const Row<Truncation>> TruncationRows();

// The row of this name; null if there is none.
template <typename T>
const Row<T>* FindRow(absl::Span<const Row<T>> rows, absl::string_view name) {
  for (const Row<T>& row : rows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

// A LossSpec with its names looked up: what the trainer works with.
struct LossRule {
  LossEntry loss;
  ProxMode prox = ProxMode::kRecompute;
  ClipRule clip;
  CorrectionRule correction;
  Aggregation aggregation;
  KlFunction kl = nullptr;  // Null where kl_coef is 0.
  double kl_coef = 0;
  double entropy_coef = 0;
};

// INVALID_ARGUMENT: an unknown name. `max_staleness` decides kl_kind auto.
absl::StatusOr<LossRule> ResolveLoss(const LossSpec& spec, int64_t max_staleness);
absl::StatusOr<AdvantageRule> ResolveAdvantage(const AdvantageSpec& spec);

}  // namespace sluice
