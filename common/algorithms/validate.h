#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/algorithms/spec.h"

namespace sluice {

// What the rules of an algorithm need to know about the rest of the job.
struct AlgorithmContext {
  int64_t group_size = 8;
  int64_t minibatches = 1;  // Optimizer steps per batch.
  bool has_reference = false;
  bool has_teacher = false;
};

// One broken rule.
struct AlgorithmProblem {
  std::string field;    // Path below `algorithm`, such as "loss.dual".
  std::string message;  // The value seen, the value wanted, what to do.
};

// All broken rules of the block, for single fields and for fields together. Empty: the job may
// start.
std::vector<AlgorithmProblem> ValidateAlgorithm(const AlgorithmSpec& spec,
                                                const AlgorithmContext& context);

}  // namespace sluice
