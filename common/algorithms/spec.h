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

  bool operator==(const AdvantageSpec&) const = default;
};

struct LossSpec {
  std::string kind = "dapo";       // A row of LossRows().
  std::string prox = "recompute";  // A row of ProxRows().
  double clip_low = 0.2;           // The ratio is clipped to [1 - clip_low, 1 + clip_high].
  double clip_high = 0.28;
  std::optional<double> dual = 3.0;  // c > 1 of the dual clip. Unset: off.
  std::optional<double> tis = 2.0;   // Cap of the importance weight. Unset: weights are 1.
  // A row of WeightRows(): one weight per token, or one per sequence.
  std::string tis_level = "token";
  // A sequence with a token weight below this is left out. Unset: none is.
  std::optional<double> veto = 1e-4;
  std::string aggregation = "token_mean";  // A row of AggregationRows().
  double kl = 0;                           // Coefficient of KL(policy || reference). 0: off.
  // A row of KlRows(), or auto: k2+ if max_staleness is 0, else k3_is.
  std::string kl_kind = "auto";
  double entropy = 0;  // Coefficient of the entropy bonus. 0: off.

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
}

struct AlgorithmSpec {
  AdvantageSpec advantage;
  LossSpec loss;

  bool operator==(const AlgorithmSpec&) const = default;
};

}  // namespace sluice
