#pragma once

#include <cstdint>
#include <span>

namespace sluice {

// The pieces of one decoder step on the CPU: raw pointers, no allocation, sums in fp32. M rows
// (tokens), N outputs, K inputs, D head size. bf16 numbers are the upper halves of fp32 ones, as
// uint16_t.
//
// A result depends on its own row alone: every sum runs in an order fixed by the output element
// (one chain of fused multiply-adds over k in a product, 16 strided partials in a norm, positions
// in rising order within the fixed chunks of attention), whatever the number of rows. The kinds
// with fused multiply-add (avx512bf16, avx512, avx2) give the same bits; `base`, without it,
// differs in the last places. In bf16 a chain takes pairs of k, the odd one first, and flushes
// denormals, as the instruction vdpbf16ps does.
inline constexpr int64_t kDecoderLanes = 16;  // Outputs per weight panel.

inline constexpr int64_t RoundUpToLanes(int64_t n) {
  return (n + kDecoderLanes - 1) / kDecoderLanes * kDecoderLanes;
}
inline constexpr int64_t RoundUpToPairs(int64_t n) { return (n + 1) / 2 * 2; }

// A weight w [N, K] as panels [ceil(N / 16)][K][16] in fp32, or [ceil(N / 16)][ceil(K / 2)][16][2]
// in bf16; what pads it is zero.
inline constexpr int64_t PackedFloats(int64_t n, int64_t k) { return RoundUpToLanes(n) * k; }
inline constexpr int64_t PackedBf16s(int64_t n, int64_t k) {
  return RoundUpToLanes(n) * RoundUpToPairs(k);
}
// Puts `rows` rows of w [rows, K] at outputs first .. first + rows - 1 of the packed weight. The
// padding must be zero already.
void PackRows(const float* w, int64_t rows, int64_t k, int64_t first, float* packed);
void PackRows(const uint16_t* w, int64_t rows, int64_t k, int64_t first, uint16_t* packed);
// The way back: outputs first .. first + rows - 1 of the packed weight as w [rows, K].
void UnpackRows(const float* packed, int64_t rows, int64_t k, int64_t first, float* w);
void UnpackRows(const uint16_t* packed, int64_t rows, int64_t k, int64_t first, uint16_t* w);
// The same of w^T, for w [K, N] that lies by rows: for gradients, whose products run over the other
// index.
void PackColumns(const float* w, int64_t k, int64_t n, float* packed);

// Keys and values of one kv head lie in blocks of 32 positions, in any order: position p of a
// sequence is in block blocks[p / 32] of its table. A block is keys [D][32], so that scores run
// along positions, then values [32][D rounded up to 16], so that outputs run along D. They are fp32
// or fp16, which has three digits more than bf16 in the same room.
inline constexpr int64_t kKvBlockTokens = 32;

template <typename T>  // float, or uint16_t for fp16.
struct KvHead {
  T* data;         // Block b begins at data + b * stride.
  int64_t stride;  // Numbers from block to block, >= BlockSize(D).

  static constexpr int64_t BlockSize(int64_t d) { return kKvBlockTokens * (d + RoundUpToLanes(d)); }
};
// Writes key and value [D] to `block`, at its position `offset` < 32; to fp16 they are rounded as
// by to_f16.
void StoreKeyValue(const KvHead<float>& cache, int64_t block, int64_t offset, int64_t d,
                   const float* key, const float* value);
void StoreKeyValue(const KvHead<uint16_t>& cache, int64_t block, int64_t offset, int64_t d,
                   const float* key, const float* value);

// One query head of one position, which sees positions begin .. end - 1 of its sequence, at least
// one.
struct AttentionQuery {
  const float* q;  // [D]
  float* out;      // [D]
  int64_t begin, end;
};
// Of the query at `position`, with a window (0: none) of positions up to its own.
inline constexpr int64_t WindowBegin(int64_t position, int64_t window) {
  return window > 0 && position >= window ? position + 1 - window : 0;
}

struct DecoderOps {
  const char* name;

  // y [M, N] (row stride ldy) = x [M, K] (row stride ldx) times w^T, plus y if `add`.
  void (*gemm)(const float* x, int64_t ldx, const float* packed, int64_t m, int64_t n, int64_t k,
               float* y, int64_t ldy, bool add);
  // The same for an x that lies turned, as [K, M] (row stride ldx).
  void (*gemm_turned)(const float* x, int64_t ldx, const float* packed, int64_t m, int64_t n,
                      int64_t k, float* y, int64_t ldy, bool add);
  // The same in bf16. ldx is even, and an odd K is followed by a zero in each row of x.
  void (*gemm_bf16)(const uint16_t* x, int64_t ldx, const uint16_t* packed, int64_t m, int64_t n,
                    int64_t k, float* y, int64_t ldy, bool add);

  // The same for a bf16 weight and an x in fp32 that is not rounded, at the speed of fp32: where
  // rounding costs too much precision. An odd K is followed by a zero in each row of x; ldx may be
  // odd.
  void (*gemm_mixed)(const float* x, int64_t ldx, const uint16_t* packed, int64_t m, int64_t n,
                     int64_t k, float* y, int64_t ldy, bool add);

  // y [M, N] = silu(x times gate^T) * (x times up^T): panels 0, 2, .. of `packed` are gate's, 1, 3,
  // .. up's. In bf16 y is rounded.
  void (*gate_up)(const float* x, int64_t ldx, const float* packed, int64_t m, int64_t n, int64_t k,
                  float* y, int64_t ldy);
  void (*gate_up_bf16)(const uint16_t* x, int64_t ldx, const uint16_t* packed, int64_t m, int64_t n,
                       int64_t k, uint16_t* y, int64_t ldy);

  // y = x / sqrt(mean(x^2) + eps) * weight, over n numbers (RMSNorm, arXiv:1910.07467). y may be x.
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* y);

  // y = silu(gate) * up, over n numbers (SwiGLU, arXiv:2002.05202). y may be gate.
  void (*swiglu)(const float* gate, const float* up, int64_t n, float* y);

  // Turns pairs (a, b) of the two halves of x [2 half] by +angle or -angle (`sign` 1 or -1), given
  // cos and sin [half]: (a cos - b sin, b cos + a sin). y may be x (RoPE, arXiv:2104.09864, in the
  // order of Hugging Face).
  void (*rope)(const float* x, const float* cos, const float* sin, float sign, int64_t half,
               float* y);

  // n numbers to bf16, to nearest even; or to fp16, where beyond 65504 they become that. A NaN
  // stays one.
  void (*to_bf16)(const float* x, int64_t n, uint16_t* y);
  void (*to_f16)(const float* x, int64_t n, uint16_t* y);

  // Causal attention of `count` queries to one kv head of one sequence, whose blocks are blocks[0],
  // blocks[1], ..: out = softmax(q . keys / sqrt(D)) values. Keys are cut into chunks of 128
  // positions; a chunk gives maximum, sum and output, and chunks merge from left to right. Fastest
  // where neighbours see about as many positions.
  void (*attend)(const AttentionQuery* queries, int64_t count, const KvHead<float>& cache,
                 const int32_t* blocks, int64_t d);
  void (*attend_f16)(const AttentionQuery* queries, int64_t count, const KvHead<uint16_t>& cache,
                     const int32_t* blocks, int64_t d);

  // Between 16 rows of a weight and their panel, by words: K fp32 numbers, or K pairs of bf16.
  // PackRows() and UnpackRows() use them.
  void (*pack_panel)(const void* w, int64_t k, void* panel);
  void (*unpack_panel)(const void* panel, int64_t k, void* w);
};

// The kinds this CPU can run, the fastest first; the last is always `base`. avx512bf16 is among
// them only where vdpbf16ps gives the bits of the other kinds, which the first call tests.
std::span<const DecoderOps* const> DecoderOpsKinds();
inline const DecoderOps& BestDecoderOps() { return *DecoderOpsKinds().front(); }

}  // namespace sluice
