#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/checkpoint/tensor_set.h"
#include "kernels/decoder/op.h"

namespace sluice {

// y [M, N] = x [M, K] times w^T, plus what y held if `add`. X is the type of the inputs, W that of
// the weight.
template <typename X, typename W>
struct Product {
  const X* x;
  int64_t x_stride;  // Numbers from one row of x to the next.
  const W* weight;   // [N, K], packed.
  int64_t m, n, k;
  float* y;
  int64_t y_stride;  // Numbers from one row of y to the next.
  bool add;
};

// The kernels that do not depend on the number type: all their numbers are fp32.
class CommonOps {
 public:
  // y = RMSNorm(x) * weight. y may be x.
  void Norm(const float* x, const std::vector<float>& weight, double eps, float* y) const {
    kernels_.rms_norm(x, weight.data(), static_cast<int64_t>(weight.size()),
                      static_cast<float>(eps), y);
  }

  // Rotates the `pairs` pairs of a head in place.
  void Rotate(const float* cos, const float* sin, int64_t pairs, float* head) const {
    kernels_.rope(head, cos, sin, 1, pairs, head);
  }

  // gate = silu(gate) * up over n numbers.
  void SwiGlu(const float* up, int64_t n, float* gate) const { kernels_.swiglu(gate, up, n, gate); }

 protected:
  const DecoderOps& kernels_ = BestDecoderOps();
};

// The kernels for weights of one number type, and how activations are rounded to it. T is float, or
// uint16_t for bf16. Decoding in fp32 and in bf16 differs here and in RowBuffer (decode_tile.h) and
// nowhere else. A product of rounded inputs takes T, one of exact inputs takes float; in fp32 they
// are the same.
//
// See kernels/decoder/op.h for what each kernel computes and what it needs behind a row of odd
// width. Thread-safe.
template <typename T>
class NumberOps;

template <>
class NumberOps<float> : public CommonOps {
 public:
  static constexpr DType kDType = DType::kF32;

  // Numbers that each output of a packed weight [N, K] takes up.
  static constexpr int64_t PackedInputs(int64_t k) { return k; }

  void Multiply(const Product<float, float>& p) const {
    kernels_.gemm(p.x, p.x_stride, p.weight, p.m, p.n, p.k, p.y, p.y_stride, p.add);
  }

  // y [M, N] = silu(x times gate^T) * (x times up^T); the panels of gate and up alternate.
  void GateUp(const float* x, int64_t x_stride, const float* weight, int64_t m, int64_t n,
              int64_t k, float* y, int64_t y_stride) const {
    kernels_.gate_up(x, x_stride, weight, m, n, k, y, y_stride);
  }

  // y = x over n numbers, since nothing is to be rounded. y may be x.
  void Round(const float* x, int64_t n, float* y) const {
    if (x != y) std::copy_n(x, n, y);
  }
  void NormAndRound(const float* x, const std::vector<float>& weight, double eps, float* y) const {
    Norm(x, weight, eps, y);
  }

  void Attend(const std::vector<AttentionQuery>& queries, const KvHead<float>& cache,
              const int32_t* blocks, int64_t head_dim) const {
    kernels_.attend(queries.data(), static_cast<int64_t>(queries.size()), cache, blocks, head_dim);
  }
};

// Weights and rounded activations are bf16, keys and values fp16.
template <>
class NumberOps<uint16_t> : public CommonOps {
 public:
  static constexpr DType kDType = DType::kBF16;

  static constexpr int64_t PackedInputs(int64_t k) { return RoundUpToPairs(k); }

  void Multiply(const Product<uint16_t, uint16_t>& p) const {
    kernels_.gemm_bf16(p.x, p.x_stride, p.weight, p.m, p.n, p.k, p.y, p.y_stride, p.add);
  }
  void Multiply(const Product<float, uint16_t>& p) const {
    kernels_.gemm_mixed(p.x, p.x_stride, p.weight, p.m, p.n, p.k, p.y, p.y_stride, p.add);
  }

  void GateUp(const uint16_t* x, int64_t x_stride, const uint16_t* weight, int64_t m, int64_t n,
              int64_t k, uint16_t* y, int64_t y_stride) const {
    kernels_.gate_up_bf16(x, x_stride, weight, m, n, k, y, y_stride);
  }

  void Round(const float* x, int64_t n, uint16_t* y) const { kernels_.to_bf16(x, n, y); }

  void NormAndRound(const float* x, const std::vector<float>& weight, double eps,
                    uint16_t* y) const {
    // Each thread has a buffer of one row, which stays in the core's first-level cache.
    thread_local std::vector<float> exact;
    exact.resize(weight.size());
    Norm(x, weight, eps, exact.data());
    Round(exact.data(), static_cast<int64_t>(weight.size()), y);
  }

  void Attend(const std::vector<AttentionQuery>& queries, const KvHead<uint16_t>& cache,
              const int32_t* blocks, int64_t head_dim) const {
    kernels_.attend_f16(queries.data(), static_cast<int64_t>(queries.size()), cache, blocks,
                        head_dim);
  }
};

}  // namespace sluice
