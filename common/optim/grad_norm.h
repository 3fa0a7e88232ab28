#pragma once

#include <cstdint>

namespace sluice {

// The sum of the squares of n values, in fp64. The order of the additions depends on n alone.
double SumOfSquares(const float* values, int64_t n);

// The factor of global-norm clipping: min(1, max_norm / (norm + 1e-6)). It is 1 if max_norm is 0,
// which switches clipping off.
double ClipFactor(double norm, double max_norm);

}  // namespace sluice
