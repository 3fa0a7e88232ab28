#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {

// Returns the floating-point operations of a forward and backward pass over the tokens at
// `positions`, of which `scored` go through the output head. A multiply-add counts as two. The
// backward pass takes twice the operations of the forward pass; what is computed again to save
// memory is not counted, as in the model FLOPs utilisation of PaLM (arXiv:2204.02311, appendix B).
double TrainingFlops(const ModelConfig& config, absl::Span<const int64_t> positions,
                     int64_t scored);

// Measures the operations per second of a matrix product of F32 or BF16 inputs, on the threads of
// ParallelFor() (parallel.h). Takes about 50 ms.
double MeasurePeakFlops(DType dtype);

}  // namespace sluice
