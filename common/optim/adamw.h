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

// The same with moments in bf16 (the upper half of an fp32). They are widened, and the step is made
// with the new moments in fp32, before these are rounded.
//
// They are rounded stochastically: up with the probability of the part that is cut off, so that
// their mean is exact. Rounding to nearest would freeze v: at b2 = 0.999 it falls by at most 0.1 %
// in a step, but half of the distance of two numbers in bf16 is 0.2 to 0.4 %. It could rise, but
// never fall again.
//
// The random bits are a hash of t and of the element's place, `first` + i, so they depend neither
// on how the parameters are split, nor on threads, and a run that goes on from a checkpoint has the
// same ones. Places that differ by a multiple of 2^32 have the same bits.
void AdamWStepBf16(const AdamWOptions& options, int64_t t, double lr, bool decay, double grad_scale,
                   int64_t n, uint64_t first, const float* grad, float* param, uint16_t* m,
                   uint16_t* v);

}  // namespace sluice
