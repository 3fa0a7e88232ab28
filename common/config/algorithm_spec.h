#pragma once

#include "common/algorithms/spec.h"

namespace sluice::job::v1 {
class Algorithm;
class JobSpec;
}  // namespace sluice::job::v1

namespace sluice {

// A job's `algorithm` block in the terms of common/algorithms.
AlgorithmSpec AlgorithmSpecOf(const job::v1::JobSpec& spec);

// Puts what a preset says over the block.
void ApplyPreset(const AlgorithmSpec& preset, job::v1::Algorithm* algorithm);

}  // namespace sluice
