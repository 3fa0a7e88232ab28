#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sluice {

// What a job's `algorithm` block says, by the names of common/algorithms/registry.h. Plain data:
// ValidateAlgorithm (validate.h) checks it, ResolveLoss and FindAdvantage turn the names into
// functions.

struct AdvantageSpec {
  std::string kind = "pool_loo";  // A row of AdvantageRows().
  // group_filter: signal; groups whose task rewards are all equal are not trained on.
  bool signal_filter = false;
  // Steps' worth of groups rejected in a row before the job fails.
  int64_t max_rejected_steps = 10;
  std::string truncated = "keep";  // A row of TruncationRows().

  bool operator==(const AdvantageSpec&) const = default;
};

struct LossSpec {
  std::string kind = "dapo";       // A row of LossRows().
  std::string prox = "recompute";  // A row of ProxRows().
  double clip_low = 0.2;           // The ratio is clipped to [1 - clip_low, 1 + clip_high].
  double clip_high = 0.28;
  std::optional<double> dual = 3.0;  // Dual clip c > 1; unset: off.
  std::optional<double> tis = 2.0;   // Cap of the importance weight; unset: weights are 1.
  // A row of WeightRows(): one weight per token, or one per sequence.
  std::string tis_level = "token";
  // A sequence with a token weight below this is left out; unset: none is.
  std::optional<double> veto = 1e-4;
  std::string aggregation = "token_mean";  // A row of AggregationRows().
  double kl = 0;                           // Coefficient of KL(policy || reference); 0: off.
  // A row of KlRows(), or auto: k2+ at max_staleness 0, k3_is above.
  std::string kl_kind = "auto";
  double entropy = 0;  // Coefficient of the entropy bonus; 0: off.

  bool operator==(const LossSpec&) const = default;
};

struct AlgorithmSpec {
  AdvantageSpec advantage;
  LossSpec loss;

  bool operator==(const AlgorithmSpec&) const = default;
};

}  // namespace sluice
