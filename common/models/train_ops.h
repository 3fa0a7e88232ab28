#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/models/sequence_share.h"
#include "common/models/teacher_rows.h"

// The parts of a decoder as autograd functions. The forward pass runs the kernels of the decode
// execution (kernels/decoder), so that a token's log-prob has the same bits in training and in
// sampling. The backward pass runs the kernels of kernels/decoder_grad. All tensors are contiguous,
// in fp32, on the CPU. The functions throw c10::Error, as torch does. The gradients of weights and
// of the embedding table are added to the parameter's grad() directly.
//
// Legend: T tokens, D head size.
namespace sluice::train_ops {

// How the operands x and w of a product are rounded: not at all (fp32); w to bf16; or both to bf16.
// In the backward pass both of the latter round x, w and the gradient of the product to bf16. Sums
// and gradients are in fp32.
enum class Operands { kF32, kBf16Weight, kBf16 };

// Returns the values as a tensor [n] of int64.
at::Tensor Integers(absl::Span<const int64_t> values);

// x [T, K] times w [N, K]^T -> [T, N].
at::Tensor Linear(const at::Tensor& x, const at::Tensor& w, Operands operands);

// Rows `tokens` of `table` [V, H] -> [T, H], rounded to bf16 if `narrow`.
at::Tensor Embed(const at::Tensor& table, const std::vector<int64_t>& tokens, bool narrow);

// Rounds each number to bf16 and widens it to fp32 again. The gradient passes unchanged.
at::Tensor RoundToBf16(const at::Tensor& x);

// RMSNorm over each group of n consecutive numbers of x, where n is the length of `weight`. A row
// of x may hold several groups, such as one for each head.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// The rotary embedding of x [T, heads * D]. Each head of a row is rotated by the angles of that
// row, whose cosines and sines are in cos and sin [T, D / 2].
at::Tensor Rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// Rounds each number to fp16 and widens it to fp32 again. The gradient passes unchanged.
at::Tensor RoundToFp16(const at::Tensor& x);

// silu(gate) * up.
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up);

// Returns forward(x), but keeps only x for the backward pass, which calls `forward` again.
// `forward` must give the same result each time, and must take every other tensor that needs a
// gradient from a parameter. (Chen et al., arXiv:1604.06174.)
std::vector<at::Tensor> ComputeAgain(
    const at::Tensor& x, std::function<std::vector<at::Tensor>(const at::Tensor& x)> forward);

// Causal attention within each sequence: q [T, heads * D], k and v [T, kv_heads * D] -> [T, heads *
// D]. Sequence b has the rows cu_seqlens[b] .. cu_seqlens[b + 1] - 1, which also attend to the rows
// of sequence prefix[b], as in PackedBatch. With a window > 0, a token attends to at most that many
// tokens, itself included. With `halves`, keys and values are rounded to fp16, and the products of
// the backward pass, but for the scores, have inputs in bf16.
at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::vector<int64_t>& cu_seqlens,
                           const std::vector<int64_t>& prefix, int64_t head_dim, int64_t window,
                           bool halves);

// Keys and values [T, kv_heads * D] of one sequence that is computed in parts, and their gradients,
// to which the backward pass of each part adds.
struct CarriedKeys {
  at::Tensor k, v;
  at::Tensor dk, dv;  // Undefined in a forward pass.
};

// The attention of q [n, heads * D], which are rows begin .. begin + n - 1 of the sequence, to
// `carried`, whose rows up to begin + n must be there, rounded as CausalAttention() rounds them.
// Each row has the same bits as from CausalAttention() on the whole sequence. The gradient of keys
// and values goes to `carried` instead of to a tensor.
at::Tensor AttendToCarried(const at::Tensor& q, const std::shared_ptr<CarriedKeys>& carried,
                           int64_t begin, int64_t head_dim, int64_t window, bool halves);

// One layer of a sequence whose rows are computed in parts: part p has the rows starts[p] ..
// starts[p + 1] - 1. Both functions must take every tensor that needs a gradient from a parameter,
// other than x [n, H], the layer's input in the rows of part p.
struct LayerParts {
  std::vector<int64_t> starts;
  // If several processes share the sequence: the rank that computes each part. Each rank has at
  // least one part. Empty: this process computes all of them.
  std::vector<int> owners;
  SequenceShare share;
  // Returns keys and values [n, kv_heads * D], rounded as CausalAttention() rounds them; the
  // gradient passes the rounding unchanged.
  std::function<std::pair<at::Tensor, at::Tensor>(const at::Tensor& x, size_t p)> keys;
  // Returns the layer's output [n, H], and then, if the loss wants it, Mixture::balance.
  std::function<std::vector<at::Tensor>(const at::Tensor& x, size_t p,
                                        const std::shared_ptr<CarriedKeys>& carried)>
      output;
};

// Runs the layer on x [T, H], the rows of the parts that this process computes, one after the
// other. Returns [T, H], and the sum of Mixture::balance. Only x is kept for the backward pass, and
// at any time the activations of one part exist, besides the keys and values of all (StreamBP,
// arXiv:2506.03077). The backward pass takes the parts from the last to the first: no earlier part
// attends to a later one, so the gradient of a part's keys and values is then complete.
//
// If processes share the sequence, they copy the keys and values of all parts to each other in both
// passes, and add up the gradients of these once each has computed its parts. Each then has the
// share of the parameters' gradients that its parts make; their sum is the gradient.
std::vector<at::Tensor> ComputeInParts(const at::Tensor& x, LayerParts parts);

// The weights of a layer's E experts: `router` is [E, H]. For each expert, `gate` and `up` are
// [F, H], and `down` is [H, F].
struct Experts {
  at::Tensor router;
  std::vector<at::Tensor> gate, up, down;
};

// What a layer has to do with the load-balancing loss (RouterBalance in train_model.h).
struct LayerBalance {
  absl::Span<const float> token_weights;    // [T]
  absl::Span<const double> expert_weights;  // [E], or empty: no term is wanted.
  // [E], or empty. The weight of each token is added to its k experts.
  absl::Span<double> loads;
};

struct Mixture {
  at::Tensor out;  // [T, H]
  // [] fp64: sum over tokens t and experts e of token_weights[t] expert_weights[e] p_te, where p_t
  // is the softmax over all logits of the router. Undefined if no term is wanted.
  at::Tensor balance;
};

// x [T, H] -> [T, H]: for each token, the sum over its k experts of the router's weight times
// down(silu(gate(x)) * up(x)), with the same bits as MoeMlp of the decode execution. `narrow`
// selects bf16.
//
// If `recorded` [T, k] is not null, it names the experts that each token went through when it was
// sampled, in rising order; if the first of a token is kAnyExpert, the router chooses. The weights
// always come from the current router (arXiv:2510.11370).
Mixture MixExperts(const at::Tensor& x, const Experts& weights, int64_t k, bool normalize,
                   bool narrow, const uint16_t* recorded, const LayerBalance& balance);

// Returns {log-prob [N], entropy [N]} of `targets` [N] under softmax(x w^T / temperature), where x
// [N, H] are the last hidden states and w [V, H] is the output head. The log-probs have the bits of
// the sampler. The logits [N, V] are never in memory as a whole: forward and backward compute them
// for some rows at a time.
//
// With a teacher there is a third output, the reverse KL [N] of each row, sum_v p_v (log p_v -
// log q_v), where p is the softmax above. The teacher's logits are computed for some rows at a time
// too, so there is twice the memory for logits.
std::vector<at::Tensor> Score(const at::Tensor& x, const at::Tensor& w, const at::Tensor& targets,
                              double temperature, Operands operands,
                              const TeacherRows* teacher = nullptr);

}  // namespace sluice::train_ops
