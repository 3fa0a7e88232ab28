#pragma once

#include "common/algorithms/spec.h"

namespace sluice::job::v1 {
class Algorithm;
class JobSpec;
}  // namespace sluice::job::v1

namespace sluice {

// Converts the `algorithm` block of a job to the types of common/algorithms.
AlgorithmSpec AlgorithmSpecOf(const job::v1::JobSpec& spec);

// Overwrites the fields of `algorithm` that a preset sets.
void ApplyPreset(const AlgorithmSpec& preset, job::v1::Algorithm* algorithm);

}  // namespace sluice
