#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "common/models/train_ops.h"

// The matrix products of training. The weight is packed for the kernels in pieces that stay in a
// core's cache while rows are multiplied by them, so a product needs no packed copy of the weight.
//
// Legend: M rows, N outputs and K inputs of the forward product y = x w^T.
namespace sluice::train_ops {

// Writes y [M, N] (row stride ldy) = x [M, K] times w [N, K]^T, with the bits of the decode
// execution. x and w are contiguous.
void Multiply(const float* x, const float* w, int64_t m, int64_t n, int64_t k, Operands operands,
              float* y, int64_t ldy);

// The two gradients of that product, from dy [M, N], contiguous. With kBf16 and kBf16Weight all
// three factors are rounded to bf16. Sums are in fp32.
// Writes dx [M, K] = dy w.
void MultiplyGradX(const float* dy, const float* w, int64_t m, int64_t n, int64_t k,
                   Operands operands, float* dx);
// Adds dy^T x to dw_sum [N, K].
void MultiplyGradW(const float* dy, const float* x, int64_t m, int64_t n, int64_t k,
                   Operands operands, float* dw_sum);

// Returns the memory of the gradient of a parameter, to which a backward pass can add directly;
// zeros are allocated if there is none yet. Autograd would need a temporary gradient of the
// parameter's size instead.
float* GradientSum(const at::Tensor& parameter);

}  // namespace sluice::train_ops
