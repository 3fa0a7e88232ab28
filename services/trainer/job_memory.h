#pragma once

#include "absl/status/statusor.h"
#include "services/trainer/config.h"

namespace sluice {
struct ModelConfig;
}

namespace sluice::trainer {

// Logs the memory plan of the job on this rank, and returns the job's settings with micro-batches
// that fit into the memory that the rank may use. `teacher` is null if the job has none.
// RESOURCE_EXHAUSTED: the job cannot fit into it; nothing was allocated for it yet.
absl::StatusOr<Settings> FitIntoMemory(const JobConfig& config, const ModelConfig& model,
                                       const ModelConfig* teacher);

}  // namespace sluice::trainer
