#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/algorithms/spec.h"

namespace sluice {

// The rest of the job, as far as the rules of an algorithm look at it.
struct AlgorithmContext {
  int64_t group_size = 8;
  int64_t minibatches = 1;   // Optimizer steps per batch.
  int64_t max_response = 1;  // Tokens.
  int64_t max_staleness = 0;
  bool has_reference = false;
};

struct AlgorithmProblem {
  std::string field;    // Path below `algorithm`: "loss.dual".
  std::string message;  // The value seen, the value wanted, what to do.
};

// Every broken rule of the block, alone and across fields; empty: the job may start.
std::vector<AlgorithmProblem> ValidateAlgorithm(const AlgorithmSpec& spec,
                                                const AlgorithmContext& context);

}  // namespace sluice
