#pragma once

#include <cstdint>

namespace sluice {

// Sum of squares of n values in fp64, in an order that depends on n alone.
double SumOfSquares(const float* values, int64_t n);

// Factor of global-norm clipping: min(1, max_norm / (norm + 1e-6)); 1 where max_norm is 0 (off).
double ClipFactor(double norm, double max_norm);

}  // namespace sluice
