#pragma once

#include <map>
#include <optional>
#include <string>

#include "common/algorithms/diagnostics.h"
#include "common/algorithms/registry.h"
#include "common/algorithms/value_loss.h"
#include "services/trainer/core/sequences.h"
#include "services/trainer/core/settings.h"

namespace sluice::trainer {

// The values of StepResult::metrics by name. The names are public: the README and dashboards use
// them.
using StepMetrics = std::map<std::string, double>;

// Adds how far the policy has moved, and how often each bound of the loss was active. The
// advantages that `stats` counted are multiplied by `advantage_factor`. Adds nothing if no token
// was counted.
void AddPolicyMetrics(const PolicyStats& stats, const LossRule& rule, double advantage_factor,
                      StepMetrics* out);

// Returns the effective share of the samples under the weights in use, which is `ess` of the
// metrics. A job whose learning rate follows it does not report it under that name, but this finds
// it. nullopt: the step has none.
std::optional<double> FindEffectiveShare(const StepMetrics& metrics, const LossSpec& loss);

// Adds the loss of the critic, and how much of the targets it explains.
void AddValueMetrics(const ValueStats& stats, StepMetrics* out);

// Adds the statistics of the task rewards, which exist even if no token is trained. What groups can
// teach is left out if `rule` ignores rewards.
void AddRewardMetrics(const AdvantageRule& rule, const SequenceBuilder& builder, StepMetrics* out);

// Adds how far the policy is from its teacher, on the mean over `tokens`, and what share of them
// has no distillation. Adds nothing if there is no teacher.
void AddDistillMetrics(const DistillRule& rule, const DistillSums& sums, int64_t tokens,
                       StepMetrics* out);

// Adds by how much trainer and rollout disagree about tokens of the same weights: the mean
// difference of the two log-probs, if all tokens of the step are of its version and the trainer's
// log-probs are those from before the first update.
void AddMismatch(const Settings& settings, const LossRule& rule, const StalenessStats& staleness,
                 StepMetrics* out);

// Adds the statistics of the versions that sampled the trained tokens. Requires at least one
// trained token.
void AddStalenessMetrics(const StalenessStats& staleness, StepMetrics* out);

}  // namespace sluice::trainer
