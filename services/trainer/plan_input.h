#pragma once

#include "absl/status/statusor.h"
#include "services/trainer/core/memory_plan.h"

namespace sluice::job::v1 {
class JobSpec;
}

namespace sluice::trainer {

// Returns what the memory plan of a job depends on, but for the model's configuration. `spec` has
// its defaults filled in. INVALID_ARGUMENT: model.dtype is no type.
absl::StatusOr<MemoryPlanInput> PlanInputOf(const job::v1::JobSpec& spec);

// The policy of the key trainer.batching.recompute_activations.
Recompute RecomputeOf(const job::v1::JobSpec& spec);

}  // namespace sluice::trainer
