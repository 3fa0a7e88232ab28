#pragma once

#include <cstdint>

namespace sluice {

// AdamW with decoupled weight decay (arXiv 1711.05101) over flat fp32 buffers, without LibTorch.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  // Applies to tensors of two or more dimensions. Pass decay = false for gains and biases.
  double weight_decay = 0.01;
};

// Step `t` (1, 2, ..) with learning rate `lr` on the `n` parameters of one tensor, in place:
//   g' = grad_scale g;  p -= lr wd p;  m = b1 m + (1 - b1) g';  v = b2 v + (1 - b2) g'^2
//   p -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
// p are the parameters, m and v the first and second moments, b1 and b2 the betas, and wd the
// weight decay (0 without `decay`). `grad_scale` applies the clip factor and the step's scale in
// the same pass. Elements are independent, so the result does not depend on how a tensor is split,
// nor on threads.
void AdamWStep(const AdamWOptions& options, int64_t t, double lr, bool decay, double grad_scale,
               int64_t n, const float* grad, float* param, float* m, float* v);

}  // namespace sluice
