#pragma once

#include <map>
#include <string>

#include "common/algorithms/diagnostics.h"
#include "services/trainer/core/sequences.h"

namespace sluice::trainer {

// The values of StepResult::metrics by name; operations documents refer to these names.
using StepMetrics = std::map<std::string, double>;

// How far the policy has moved, and how often each bound of the loss was active. The advantages
// that `m` counted are multiplied by `advantage_factor`.
void AddPolicyMetrics(const PolicyMetrics& m, double advantage_factor, StepMetrics* out);

// Of the task rewards, which exist even if no token is trained.
void AddRewardMetrics(const SequenceBuilder& builder, StepMetrics* out);

// Of the versions that sampled the trained tokens. At least one token is trained.
void AddStalenessMetrics(const StalenessStats& staleness, StepMetrics* out);

}  // namespace sluice::trainer
