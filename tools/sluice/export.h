#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::cli {

// The newest checkpoint of a job, `step-N` with the greatest N: `dir` is its own folder, or the folder of several jobs, where
// `job` (32 hex digits) tells its own, NAME-<first 8 digits>. NOT_FOUND: there is none.
absl::StatusOr<std::string> NewestCheckpoint(const std::string& dir, const std::string& job);

// Copies the model's own files of a checkpoint (what transformers loads: no optimizer, cursor, lineage or state) to `out`,
// which appears whole or not at all. ALREADY_EXISTS: `out` is there.
absl::Status ExportCheckpoint(const std::string& checkpoint, const std::string& out);

}  // namespace sluice::cli
