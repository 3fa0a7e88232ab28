#pragma once

#include "absl/status/status.h"
#include "services/trainer/config.h"

namespace sluice {
struct ModelConfig;
}

namespace sluice::trainer {

// Logs the memory plan of the job on this rank. `teacher` is null if the job has none.
// RESOURCE_EXHAUSTED: it cannot fit into this machine; nothing was allocated for it yet.
absl::Status CheckMemory(const JobConfig& config, const ModelConfig& model,
                         const ModelConfig* teacher);

}  // namespace sluice::trainer
