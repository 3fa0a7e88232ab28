#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "common/checkpoint/model_dir.h"
#include "services/trainer/config.h"

namespace sluice::trainer {

// Reads the directory of the job's teacher, without its weights; nullopt if the job has none.
// Errors are those of ReadModelDir() and CheckTeacher().
absl::StatusOr<std::optional<ModelDir>> ReadTeacher(const JobConfig& config,
                                                    const ModelDir& student);

}  // namespace sluice::trainer
