#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice::cli {

// Whether `dir` is a job's own folder, with at least one checkpoint.
bool HoldsCheckpoints(const std::string& dir);

// The newest checkpoint of a job: `dir` is its own folder, or the folder of several jobs, where
// `job` (32 hex digits) tells its own, NAME-<first 8 digits>. Those that cannot be read are named
// in *unreadable. NOT_FOUND: there is none.
absl::StatusOr<std::string> NewestCheckpoint(const std::string& dir, const std::string& job,
                                             std::vector<std::string>* unreadable);

// The best checkpoint by evaluation beside training; `dir` and `job` as above. NOT_FOUND: there is
// none.
absl::StatusOr<std::string> BestCheckpoint(const std::string& dir, const std::string& job);

// Copies the model's own files of a checkpoint (what transformers loads: no optimizer, cursor,
// lineage or state) to `out`, which appears whole or not at all. The weights have the types of the
// job's model; with `dtype` they are the checkpoint's fp32 parameters in that type.
// ALREADY_EXISTS: `out` is there. DATA_LOSS: a file is not what was written into the checkpoint.
absl::Status ExportCheckpoint(const std::string& checkpoint, const std::string& out,
                              std::optional<DType> dtype);

}  // namespace sluice::cli
