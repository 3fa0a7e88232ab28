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

// Reads the weights with which the job's critic begins; nullopt if it begins with those of the
// policy, or if there is no critic. Errors are those of ReadModelDir(), CheckCritic() and
// ReadWeights().
absl::StatusOr<std::optional<TensorSet>> ReadCriticWeights(const JobConfig& config,
                                                           const ModelDir& policy);

}  // namespace sluice::trainer
