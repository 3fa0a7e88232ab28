#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

// The pieces of a decoder as autograd functions. Forward they run the very kernels of the decode
// execution, so that a token's log-prob has the same bits in training and in sampling; backward
// those of kernels/decoder_grad. All tensors are contiguous fp32 on the CPU; they throw c10::Error
// as torch does. T tokens, D head size.
namespace sluice::train_ops {

// What a product takes in: fp32; w rounded to bf16; or both rounded. The gradient is that of the
// product of the rounded numbers, in fp32, and passes the rounding as if there were none.
enum class Operands { kF32, kBf16Weight, kBf16 };

// The numbers as a tensor [n] of int64.
at::Tensor Integers(absl::Span<const int64_t> values);

// x [T, K] times w [N, K]^T -> [T, N].
at::Tensor Linear(const at::Tensor& x, const at::Tensor& w, Operands operands);

// To bf16 and back; the gradient passes.
at::Tensor Rounded(const at::Tensor& x);

// Over the last dimension of x, which weight [n] gives: x may hold several heads of n numbers in a
// row.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// x [T, heads * D], each head turned by the row's angles: cos and sin [T, D / 2].
at::Tensor Rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// silu(gate) * up.
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up);

// Causal attention within each sequence: q [T, heads * D], k and v [T, kv_heads * D] -> [T, heads *
// D]. Sequence b is rows ends[b] .. ends[b + 1] - 1, and sees those of sequence prefix[b] before
// them; as PackedBatch has it. With a window > 0 a token sees that many tokens up to itself. With
// `halves`, keys and values are rounded to fp16.
at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::vector<int64_t>& ends, const std::vector<int64_t>& prefix,
                           int64_t head_dim, int64_t window, bool halves);

// The experts of a layer: router [E, H], and for each of E gate, up [F, H] and down [H, F].
struct Experts {
  at::Tensor router;
  std::vector<at::Tensor> gate, up, down;
};

// x [T, H] -> [T, H]: each token's sum over k experts of weight times down(silu(gate(x)) * up(x)),
// as MoeMlp has it; `narrow` is its bf16. `recorded` [T, k], if not null, are the experts that the
// tokens went through when they were sampled, rising, or kAnyExpert where that is not known: then
// the router chooses. The weights are the router's of now (arXiv:2510.11370).
at::Tensor MixExperts(const at::Tensor& x, const Experts& weights, int64_t k, bool normalize,
                      bool narrow, const uint16_t* recorded);

// {log-prob [N], entropy [N]} of targets [N] i64 under softmax(logits [N, V] / temperature).
std::vector<at::Tensor> Score(const at::Tensor& logits, const at::Tensor& targets,
                              double temperature);

}  // namespace sluice::train_ops
