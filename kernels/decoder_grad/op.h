#pragma once

#include <cstdint>
#include <span>

namespace sluice {

// Gradients of the operations of kernels/decoder and of the token scores of kernels/sample, on the
// CPU, on raw pointers, in fp32. Gradients whose name ends in `_sum` are added to the memory,
// others overwrite it. dx is the derivative of the loss with respect to x. V: vocabulary.
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

  // Gradient of p = softmax(s) over n numbers. On entry p holds s and ds holds dp; on return p
  // holds the probabilities and ds holds
  //   ds_j = p_j (dp_j - sum_i p_i dp_i).
  void (*softmax)(float* p, float* ds, int64_t n);

  // Gradient of log-prob lp and entropy of one row of logits z [V] at the inverse temperature b,
  // with lse = log sum exp(b z), p = exp(b z - lse):
  //   dz_v = b (dlp (1{v = target} - p_v) - dentropy p_v (log p_v + entropy)).
  // dz replaces z, because both are large.
  void (*score_grad)(float* logits, int64_t vocab, float inverse_temperature, int64_t target,
                     float entropy, float lse, float dlp, float dentropy);

  // log sum exp(b z) over n numbers.
  float (*log_sum_exp)(const float* z, int64_t n, float b);

  // The reverse KL of two rows of logits z and y [V] at the inverse temperature b, with
  // log p = b z - lse_z and log q = b y - lse_y:
  //   l = sum_v p_v (log p_v - log q_v).
  float (*reverse_kl)(const float* z, const float* y, int64_t vocab, float b, float lse_z,
                      float lse_y);

  // Its gradient with respect to z, from dl; it replaces y, because both rows are large:
  //   dz_v = b dl p_v (log p_v - log q_v - l).
  void (*reverse_kl_grad)(const float* z, float* y, int64_t vocab, float b, float lse_z,
                          float lse_y, float l, float dl);
};

// DecoderGradOpsKinds() returns the kinds (instruction sets) that this CPU can run, fastest first;
// the last is always `base`. BestDecoderGradOps() returns the first.
std::span<const DecoderGradOps* const> DecoderGradOpsKinds();
inline const DecoderGradOps& BestDecoderGradOps() { return *DecoderGradOpsKinds().front(); }

}  // namespace sluice
