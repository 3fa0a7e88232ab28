#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {

// Random weights: norms are 1, all else is normal(0, config.initializer_range), as transformers
// starts these models. Each tensor draws from its own stream, keyed by seed and name, so the same
// seed gives the same bits everywhere, whatever else the model holds. Drawn in double, rounded to
// fp32 and then to `dtype`.
absl::StatusOr<TensorSet> InitWeights(const ModelConfig& config, uint64_t seed,
                                      DType dtype = DType::kF32);

}  // namespace sluice
