#pragma once

#include <cstdint>
#include <span>

namespace sluice {

// Gradients of the operations of kernels/decoder and of the token scores of kernels/sample, on the
// CPU, on raw pointers, in fp32. Gradients whose name ends in `_sum` are added to the memory,
// others overwrite it. dx is the derivative of the loss with respect to x. Letters: D head size, V
// vocabulary.
//
// Thread-safe; callers must not write to the same memory.
struct DecoderGradOps {
  const char* name;

  // Gradient of y = x r weight with r = 1 / sqrt(mean(x^2) + eps), over n numbers, from dy:
  //   dx = r (dy weight - x r mean(dy weight x r)),  dweight_sum += dy x r.
  void (*rms_norm)(const float* x, const float* weight, const float* dy, int64_t n, float eps,
                   float* dx, float* dweight_sum);

  // Gradient of y = silu(gate) * up over n numbers.
  void (*swiglu)(const float* gate, const float* up, const float* dy, int64_t n, float* dgate,
                 float* dup);

  // Gradient of causal attention of one query head for `length` queries, the last ones of first +
  // length positions:
  //   out_i = sum_{j <= first + i} p_ij v_j,  p_i = softmax_j(q_i . k_j / sqrt(D))
  // k and v are [first + length, D]. The rows i of q, dout and dq are q_stride floats apart. The
  // probabilities are computed again. With a window > 0, a query attends to that many positions up
  // to and including its own. `scratch` has 2 * (first + length) floats.
  //   ds_ij = p_ij (dout_i . v_j - sum_j p_ij dout_i . v_j) / sqrt(D)
  //   dq_i = sum_j ds_ij k_j,  dk_j += ds_ij q_i,  dv_j += p_ij dout_i
  void (*attention)(const float* q, const float* k, const float* v, const float* dout,
                    int64_t first, int64_t length, int64_t d, int64_t window, int64_t q_stride,
                    float* scratch, float* dq, float* dk_sum, float* dv_sum);

  // Gradient of log-prob lp and entropy of one row of logits z [V] at the inverse temperature b,
  // with lse = log sum exp(b z), p = exp(b z - lse):
  //   dz_v = b (dlp (1{v = target} - p_v) - dentropy p_v (log p_v + entropy)).
  void (*score_grad)(const float* logits, int64_t vocab, float inverse_temperature, int64_t target,
                     float entropy, float lse, float dlp, float dentropy, float* dlogits);
};

// DecoderGradOpsKinds() returns the kinds (instruction sets) that this CPU can run, fastest first;
// the last is always `base`. BestDecoderGradOps() returns the first.
std::span<const DecoderGradOps* const> DecoderGradOpsKinds();
inline const DecoderGradOps& BestDecoderGradOps() { return *DecoderGradOpsKinds().front(); }

}  // namespace sluice
