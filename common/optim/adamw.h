#pragma once

#include <cstdint>

namespace sluice {

// AdamW with decoupled decay (arXiv 1711.05101) over flat fp32 buffers, no torch.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  // For tensors of two dimensions and more; pass decay = false for gains and biases.
  double weight_decay = 0.01;
};

// Step `t` (1, 2, ..) on `n` parameters of one tensor, in place:
//   g' = grad_scale g;  p -= lr wd p;  m = b1 m + (1 - b1) g';  v = b2 v + (1 - b2) g'^2
//   p -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
// `grad_scale` takes the clip factor and the step's scale in one pass. Element by element: the
// result does not depend on how a tensor is split, nor on threads.
void AdamWStep(const AdamWOptions& options, int64_t t, double lr, bool decay, double grad_scale,
               int64_t n, const float* grad, float* param, float* m, float* v);

}  // namespace sluice
