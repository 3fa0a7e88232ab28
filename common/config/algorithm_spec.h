#pragma once

#include <functional>

#include "common/algorithms/spec.h"

namespace sluice::job::v1 {
class Algorithm;
class JobSpec;
class Loss;
}  // namespace sluice::job::v1

namespace sluice {

// Converts the `algorithm` block of a job to the types of common/algorithms.
AlgorithmSpec AlgorithmSpecOf(const job::v1::JobSpec& spec);

// Overwrites the fields of `algorithm` that a preset sets.
void ApplyPreset(const AlgorithmSpec& preset, job::v1::Algorithm* algorithm);

// Sets the bounds and the aggregation that the loss loss->kind() has by default
// (LossEntry::defaults) in the fields that the job file does not give.
void ApplyLossDefaults(const std::function<bool(const char* field)>& given, job::v1::Loss* loss);

}  // namespace sluice
