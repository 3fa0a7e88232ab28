#pragma once

#include "absl/status/statusor.h"
#include "services/trainer/core/memory_plan.h"
#include "services/trainer/core/settings.h"

namespace sluice::job::v1 {
class JobSpec;
}

namespace sluice::trainer {

// What a job's spec, with its defaults filled in, says about training.
// INVALID_ARGUMENT: a value is not allowed; the message names the key.
absl::StatusOr<Settings> SettingsOf(const job::v1::JobSpec& spec);

// What the memory plan of a job depends on, but for the model's configuration. Errors are those of
// SettingsOf().
absl::StatusOr<MemoryPlanInput> PlanInputOf(const job::v1::JobSpec& spec);

}  // namespace sluice::trainer
