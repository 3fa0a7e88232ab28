#include "common/optim/grad_norm.h"

#include <algorithm>

namespace sluice {

double SumOfSquares(const float* values, int64_t n) {
  // Independent partial sums can be vectorised, and their order depends on n alone.
  constexpr int kLanes = 8;
  double lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      const double x = values[i + j];
      lane[j] += x * x;
    }
  }
  for (int j = 0; i < n; ++i, ++j) lane[j] += static_cast<double>(values[i]) * values[i];
  return ((lane[0] + lane[4]) + (lane[1] + lane[5])) + ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

double ClipFactor(double norm, double max_norm) {
  if (max_norm == 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace sluice
