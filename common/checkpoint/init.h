#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {

// Makes random weights: norms are 1, and all other elements, biases included, are drawn from
// normal(0, config.initializer_range). transformers initialises these models in the same way,
// except that its biases start at 0. Each tensor has its own random stream, seeded by `seed` and
// the tensor's name, so a seed gives the same bits on every machine, whatever other tensors the
// model has. Values are drawn in double, rounded to fp32 and then to `dtype`.
absl::StatusOr<TensorSet> InitWeights(const ModelConfig& config, uint64_t seed,
                                      DType dtype = DType::kF32);

}  // namespace sluice
