#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

// The pieces of a decoder as autograd functions. Forward they run the very kernels of the decode execution, so that a token's
// log-prob has the same bits in training and in sampling; backward those of kernels/decoder_grad. All tensors are contiguous
// fp32 on the CPU; they throw c10::Error as torch does. T tokens, D head size.
namespace sluice::train_ops {

// x [T, K] times w [N, K]^T -> [T, N].
at::Tensor Linear(const at::Tensor& x, const at::Tensor& w);

// Over the last dimension of x, which weight [n] gives: x may hold several heads of n numbers in a row.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// x [T, heads * D], each head turned by the row's angles: cos and sin [T, D / 2].
at::Tensor Rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// silu(gate) * up.
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up);

// Causal attention within each sequence: q [T, heads * D], k and v [T, kv_heads * D] -> [T, heads * D]. Sequence b is rows
// ends[b] .. ends[b + 1] - 1, and sees those of sequence prefix[b] before them; as PackedBatch has it. With a window > 0 a token
// sees that many tokens up to itself.
at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::vector<int64_t>& ends,
                           const std::vector<int64_t>& prefix, int64_t head_dim, int64_t window);

// {log-prob [N], entropy [N]} of targets [N] i64 under softmax(logits [N, V] / temperature).
std::vector<at::Tensor> Score(const at::Tensor& logits, const at::Tensor& targets, double temperature);

}  // namespace sluice::train_ops
