#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice::cli {

// Whether `dir` is the folder of one job, with at least one checkpoint.
bool HoldsCheckpoints(const std::string& dir);

// Returns the newest checkpoint of a job. `dir` is the job's own folder, or holds the folders of
// several jobs; then the job's folder is NAME-<first 8 digits of `job`> (`job` has 32 hex digits).
// Checkpoints that cannot be read are described in *unreadable. NOT_FOUND: there is no checkpoint.
absl::StatusOr<std::string> FindNewestCheckpoint(const std::string& dir, const std::string& job,
                                                 std::vector<std::string>* unreadable);

// Returns the checkpoint with the best evaluation; `dir` and `job` as above. NOT_FOUND: there is
// none.
absl::StatusOr<std::string> FindBestCheckpoint(const std::string& dir, const std::string& job);

// Copies the model files of a checkpoint (those that transformers loads; not optimizer, cursor,
// lineage or state) to the new directory `out`, which appears only when it is complete. The weights
// keep the types of the job's model; with `dtype`, they are the checkpoint's fp32 parameters
// converted to that type.
// ALREADY_EXISTS: `out` exists.
// DATA_LOSS: a file differs from what was written into the checkpoint.
// INVALID_ARGUMENT: a parameter is too large for `dtype`.
absl::Status ExportCheckpoint(const std::string& checkpoint, const std::string& out,
                              std::optional<DType> dtype);

// Writes the low-rank factors of a checkpoint as an adapter in the form of PEFT to the new
// directory `out`, which appears only when it is complete: adapter_config.json and
// adapter_model.safetensors in fp32.
// ALREADY_EXISTS: `out` exists.
// FAILED_PRECONDITION: the job trained whole matrices.
absl::Status ExportAdapter(const std::string& checkpoint, const std::string& out);

}  // namespace sluice::cli
