#pragma once

#include "absl/status/statusor.h"
#include "services/rollout/core/engine/registry.h"

namespace sluice::job::v1 {
class JobSpec;
}  // namespace sluice::job::v1

namespace sluice::rollout {

// The engine that a job asks for, with one thread and without the job's id.
// INVALID_ARGUMENT: model.dtype is none that engines know.
absl::StatusOr<EngineSpec> EngineSpecOf(const job::v1::JobSpec& spec);

}  // namespace sluice::rollout
