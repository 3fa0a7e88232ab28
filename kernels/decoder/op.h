#pragma once

#include <cstdint>
#include <span>

namespace sluice {

// The operations of one decoder step on the CPU, on raw pointers, without allocation, with sums in
// fp32. Letters: M rows (tokens), N outputs, K inputs, D head size. A bf16 number is the upper half
// of an fp32 number, stored as uint16_t.
//
// A result depends only on its own row, never on the number of rows. The order of every sum is
// fixed by the output element: a product is one chain of fused multiply-adds over k, a norm has 16
// strided partial sums, and attention takes positions in rising order within fixed chunks. The
// kinds (instruction sets) with fused multiply-add, avx512bf16, avx512 and avx2, give the same
// bits; `base`, without it, differs in the last digits. In bf16 a chain takes k in pairs, the odd
// one first, and treats denormals as zero, like the instruction vdpbf16ps.
//
// All functions are thread-safe; callers must not write to the same memory.
inline constexpr int64_t kDecoderLanes = 16;  // Outputs per weight panel.

inline constexpr int64_t RoundUpToLanes(int64_t n) {
  return (n + kDecoderLanes - 1) / kDecoderLanes * kDecoderLanes;
}
inline constexpr int64_t RoundUpToPairs(int64_t n) { return (n + 1) / 2 * 2; }

// A weight w [N, K] is stored in panels of 16 outputs: [ceil(N / 16)][K][16] in fp32, or [ceil(N /
// 16)][ceil(K / 2)][16][2] in bf16. The padding is zero. These functions return the size of the
// packed weight in numbers.
inline constexpr int64_t PackedFloats(int64_t n, int64_t k) { return RoundUpToLanes(n) * k; }
inline constexpr int64_t PackedBf16s(int64_t n, int64_t k) {
  return RoundUpToLanes(n) * RoundUpToPairs(k);
}
// Copies w [rows, K] to the outputs first .. first + rows - 1 of a packed weight. Its padding must
// already be zero.
void PackRows(const float* w, int64_t rows, int64_t k, int64_t first, float* packed);
void PackRows(const uint16_t* w, int64_t rows, int64_t k, int64_t first, uint16_t* packed);
// Copies the outputs first .. first + rows - 1 of a packed weight back to w [rows, K].
void UnpackRows(const float* packed, int64_t rows, int64_t k, int64_t first, float* w);
void UnpackRows(const uint16_t* packed, int64_t rows, int64_t k, int64_t first, uint16_t* w);
// Packs the transpose of w [K, N], which is stored by rows that are ldw numbers apart. Gradients
// need it, because their products sum over the other index. The second function rounds to bf16.
// Both write the padding too.
void PackColumns(const float* w, int64_t ldw, int64_t k, int64_t n, float* packed);
void PackColumns(const float* w, int64_t ldw, int64_t k, int64_t n, uint16_t* packed);

// Layout of the KV cache. The keys and values of one KV head are in blocks of 32 positions.
// Position p of a sequence is in block blocks[p / 32] of its block table, so blocks can be in any
// order. A block holds keys [D][32], so that scores are computed for neighbouring positions at
// once, then values [32][D rounded up to 16], so that outputs are computed for neighbouring
// elements at once. The numbers are fp32, or fp16, which has three more bits of precision than bf16
// in the same space.
inline constexpr int64_t kKvBlockTokens = 32;

template <typename T>  // float, or uint16_t for fp16.
struct KvHead {
  T* data;         // Block b begins at data + b * stride.
  int64_t stride;  // Numbers from one block to the next; >= BlockSize(D).

  static constexpr int64_t BlockSize(int64_t d) { return kKvBlockTokens * (d + RoundUpToLanes(d)); }
};
// Writes key and value [D] to position `offset` < 32 of `block`. With an fp16 cache they are
// rounded as by to_f16.
void StoreKeyValue(const KvHead<float>& cache, int64_t block, int64_t offset, int64_t d,
                   const float* key, const float* value);
void StoreKeyValue(const KvHead<uint16_t>& cache, int64_t block, int64_t offset, int64_t d,
                   const float* key, const float* value);

// One query: a query head at one position. It attends to the positions begin .. end - 1 of its
// sequence, at least one.
struct AttentionQuery {
  const float* q;  // [D]
  float* out;      // [D]
  int64_t begin, end;
};
// Returns the first position that the query at `position` attends to. A window > 0 is the number of
// positions up to and including its own; 0 means no limit.
inline constexpr int64_t WindowBegin(int64_t position, int64_t window) {
  return window > 0 && position >= window ? position + 1 - window : 0;
}

// The operations for one instruction set (a kind).
struct DecoderOps {
  const char* name;

  // y [M, N] (row stride ldy) = x [M, K] (row stride ldx) times w^T, where `packed` is w. If `add`,
  // each sum is added to y when it is complete.
  void (*gemm)(const float* x, int64_t ldx, const float* packed, int64_t m, int64_t n, int64_t k,
               float* y, int64_t ldy, bool add);
  // The same for a transposed x: [K, M] (row stride ldx).
  void (*gemm_transposed)(const float* x, int64_t ldx, const float* packed, int64_t m, int64_t n,
                          int64_t k, float* y, int64_t ldy, bool add);
  // The same in bf16. ldx must be even; if K is odd, each row of x must be followed by a zero.
  void (*gemm_bf16)(const uint16_t* x, int64_t ldx, const uint16_t* packed, int64_t m, int64_t n,
                    int64_t k, float* y, int64_t ldy, bool add);

  // The same for a bf16 weight and an unrounded x in fp32, at the speed of fp32. Use it where
  // rounding x would lose too much precision. Denormals keep their value. If K is odd, each row of
  // x must be followed by a zero; ldx may be odd.
  void (*gemm_mixed)(const float* x, int64_t ldx, const uint16_t* packed, int64_t m, int64_t n,
                     int64_t k, float* y, int64_t ldy, bool add);

  // y [M, N] = silu(x times gate^T) * (x times up^T). The panels 0, 2, .. of `packed` belong to
  // gate, 1, 3, .. to up. In bf16, y is rounded.
  void (*gate_up)(const float* x, int64_t ldx, const float* packed, int64_t m, int64_t n, int64_t k,
                  float* y, int64_t ldy);
  void (*gate_up_bf16)(const uint16_t* x, int64_t ldx, const uint16_t* packed, int64_t m, int64_t n,
                       int64_t k, uint16_t* y, int64_t ldy);

  // y = x / sqrt(mean(x^2) + eps) * weight over n numbers (RMSNorm, arXiv:1910.07467). y may be x.
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float eps, float* y);

  // y = silu(gate) * up over n numbers (SwiGLU, arXiv:2002.05202). y may be gate.
  void (*swiglu)(const float* gate, const float* up, int64_t n, float* y);

  // Rotary embedding (RoPE, arXiv:2104.09864, in Hugging Face's order): rotates the pairs (a, b) of
  // elements i and half + i of x [2 half] by +angle or -angle (`sign` 1 or -1), given cos and sin
  // [half]: (a cos - b sin, b cos + a sin). y may be x.
  void (*rope)(const float* x, const float* cos, const float* sin, float sign, int64_t half,
               float* y);

  // Convert n numbers to bf16 or fp16, rounding to nearest, ties to even. Numbers beyond the
  // largest fp16, 65504, become 65504. NaN stays NaN.
  void (*to_bf16)(const float* x, int64_t n, uint16_t* y);
  void (*to_f16)(const float* x, int64_t n, uint16_t* y);

  // Causal attention of `count` queries to one KV head of one sequence, whose blocks are blocks[0],
  // blocks[1], ..: out = softmax(q . keys / sqrt(D)) values. Keys are processed in chunks of 128
  // positions. Each chunk gives a maximum, a sum and an output, and chunks are merged from left to
  // right. It is fastest if neighbouring queries attend to similar numbers of positions.
  void (*attend)(const AttentionQuery* queries, int64_t count, const KvHead<float>& cache,
                 const int32_t* blocks, int64_t d);
  void (*attend_f16)(const AttentionQuery* queries, int64_t count, const KvHead<uint16_t>& cache,
                     const int32_t* blocks, int64_t d);

  // Copy 16 rows of a weight to their panel and back, in 32-bit words: w has K words per row, which
  // are fp32 numbers or pairs of bf16 numbers. PackRows() and UnpackRows() use them.
  void (*pack_panel)(const void* w, int64_t k, void* panel);
  void (*unpack_panel)(const void* panel, int64_t k, void* w);
  // Rounds 16 columns of w [K, 16] (row stride ldw) to bf16 and writes them as a panel.
  void (*pack_columns_bf16)(const float* w, int64_t ldw, int64_t k, uint16_t* panel);
};

// Returns the kinds that this CPU can run, fastest first; the last is always `base`. The first call
// tests whether vdpbf16ps gives the same bits as the other kinds; only then avx512bf16 is included.
std::span<const DecoderOps* const> DecoderOpsKinds();
inline const DecoderOps& BestDecoderOps() { return *DecoderOpsKinds().front(); }

}  // namespace sluice
