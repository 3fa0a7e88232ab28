#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace sluice {

// The pieces of one decoder step on the CPU: raw pointers, fp32, no allocation. M rows (tokens), N outputs, K inputs, D head size.
//
// A result depends on its own row alone: every sum runs in an order fixed by the output element (one chain over k in a product,
// 16 strided partials in a norm, positions in rising order within the fixed chunks of attention), whatever the number of rows. The kinds with fused
// multiply-add (avx2, avx512) give the same bits in products and norms; `base`, without it, differs in the last places.
inline constexpr int64_t kDecoderLanes = 16;  // Outputs per weight panel.

inline constexpr int64_t RoundUpToLanes(int64_t n) { return (n + kDecoderLanes - 1) / kDecoderLanes * kDecoderLanes; }

// A weight w [N, K] as panels [ceil(N / 16)][K][16], the last padded with zeros.
inline constexpr int64_t PackedFloats(int64_t n, int64_t k) { return RoundUpToLanes(n) * k; }
// Puts `rows` rows of w [rows, K] at outputs first .. first + rows - 1 of the packed weight. The padding must be zero already.
void PackRows(const float* w, int64_t rows, int64_t k, int64_t first, float* packed);
// The same of w^T, for w [K, N] that lies by rows: for gradients, whose products run over the other index.
void PackColumns(const float* w, int64_t k, int64_t n, float* packed);

// Keys and values of one kv head lie in blocks of 32 positions, in any order: position p of a sequence is in block blocks[p / 32] of
// its table. A block is keys [D][32], so that scores run along positions, then values [32][RoundUpToLanes(D)], so that outputs run
// along D.
inline constexpr int64_t kKvBlockTokens = 32;

struct KvHead {
  float* data;     // Block b begins at data + b * stride.
  int64_t stride;  // Floats from block to block, >= BlockFloats(D).

  static constexpr int64_t KeyFloats(int64_t d) { return kKvBlockTokens * d; }
  static constexpr int64_t BlockFloats(int64_t d) { return KeyFloats(d) + kKvBlockTokens * RoundUpToLanes(d); }
};
// Writes key and value [D] to `block`, at its position `offset` < 32.
void StoreKeyValue(const KvHead& cache, int64_t block, int64_t offset, int64_t d, const float* key, const float* value);

struct DecoderOps {
  const char* name;

  // y [M, N] (row stride ldy) = x [M, K] (row stride ldx) times w^T, plus y if `add`.
  void (*gemm)(const float* x, int64_t ldx, const float* packed, int64_t m, int64_t n, int64_t k, float* y, int64_t ldy, bool add);
  // The same for an x that lies turned, as [K, M] (row stride ldx).
  void (*gemm_turned)(const float* x, int64_t ldx, const float* packed, int64_t m, int64_t n, int64_t k, float* y, int64_t ldy, bool add);

  // y = x / sqrt(mean(x^2) + eps) * weight, over n numbers (RMSNorm, arXiv:1910.07467). y may be x.
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* y);

  // y = silu(gate) * up, over n numbers (SwiGLU, arXiv:2002.05202). y may be gate.
  void (*swiglu)(const float* gate, const float* up, int64_t n, float* y);

  // Causal attention of one position over `positions` keys, whose blocks are blocks[0], blocks[1], .., for the `group` query heads
  // that share a kv head: out [group, D] = softmax(q [group, D] . keys / sqrt(D)) values. Keys are cut into chunks of 128 positions;
  // a chunk gives maximum, sum and output, and chunks merge from left to right.
  void (*attend)(const float* q, const KvHead& cache, const int32_t* blocks, int64_t positions, int64_t group, int64_t d, float* out);
};

// The kinds this CPU can run, the fastest first; the last is always `base`.
absl::Span<const DecoderOps* const> DecoderOpsKinds();
inline const DecoderOps& BestDecoderOps() { return *DecoderOpsKinds().front(); }

}  // namespace sluice
