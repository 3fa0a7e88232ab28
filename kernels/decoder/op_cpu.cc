#include "kernels/decoder/op.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

namespace sluice {
namespace {

// An fp32 number, or a pair of bf16 numbers.
typedef uint32_t Word __attribute__((may_alias, aligned(2)));

// While an object of this class exists, denormals count as zero on this thread, as in vdpbf16ps.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  // 0x8040: flush-to-zero and denormals-are-zero.
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  const unsigned before_;
#else
  FlushDenormals() {}
#endif
};

#define SLUICE_OPS(name)                                                                         \
  {name,      Gemm,        GemmTransposed, GemmBf16, GemmMixed, GateUp,        GateUpBf16,       \
   RmsNorm,   SwiGlu,      Rope,           ToBf16,   ToF16,     Attend<float>, Attend<uint16_t>, \
   PackPanel, UnpackPanel, PackColumnsBf16}

#if defined(__x86_64__)
#if defined(__clang__)
// clang does not know this option and would ignore the whole attribute.
#define SLUICE_WIDE
#else
#define SLUICE_WIDE ",prefer-vector-width=512"
#endif
namespace avx512 {

// The .inc files are included once per instruction set. SLUICE_ROWS and the other macros are
// explained at the top of vector.inc, gemm.inc and attend.inc.
#define SLUICE_TARGET \
  __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma" SLUICE_WIDE)))
#define SLUICE_WIDTH 16
#define SLUICE_ROWS 13
#define SLUICE_PANELS 2
#define SLUICE_GATE_ROWS 13
#define SLUICE_QUERIES 4
// clang-format off: each needs those before it.
#include "kernels/decoder/vector.inc"
#include "kernels/decoder/pointwise.inc"
#include "kernels/decoder/gemm.inc"
#include "kernels/decoder/attend.inc"
#include "kernels/decoder/pack.inc"
// clang-format on
constexpr DecoderOps kOps = SLUICE_OPS("avx512");
#undef SLUICE_INLINE
#undef SLUICE_TARGET
}  // namespace avx512

namespace avx512bf16 {
#define SLUICE_TARGET \
  __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx512bf16,avx2,fma" SLUICE_WIDE)))
#define SLUICE_NATIVE_BF16
// clang-format off: each needs those before it.
#include "kernels/decoder/vector.inc"
#include "kernels/decoder/pointwise.inc"
#include "kernels/decoder/gemm.inc"
// clang-format on
constexpr DecoderOps kOps = [] {
  DecoderOps ops = avx512::kOps;
  ops.name = "avx512bf16", ops.gemm_bf16 = GemmBf16, ops.gate_up_bf16 = GateUpBf16;
  ops.rms_norm = RmsNorm, ops.swiglu = SwiGlu, ops.rope = Rope, ops.to_bf16 = ToBf16,
  ops.to_f16 = ToF16;
  return ops;
}();
#undef SLUICE_NATIVE_BF16
#undef SLUICE_TARGET
#undef SLUICE_WIDTH
#undef SLUICE_ROWS
#undef SLUICE_PANELS
#undef SLUICE_GATE_ROWS
#undef SLUICE_QUERIES
#undef SLUICE_INLINE
}  // namespace avx512bf16

namespace avx2 {
#define SLUICE_TARGET __attribute__((target("avx2,fma,f16c")))
#define SLUICE_WIDTH 8
#define SLUICE_ROWS 6
#define SLUICE_PANELS 1
#define SLUICE_GATE_ROWS 2
#define SLUICE_QUERIES 2
// clang-format off: each needs those before it.
#include "kernels/decoder/vector.inc"
#include "kernels/decoder/pointwise.inc"
#include "kernels/decoder/gemm.inc"
#include "kernels/decoder/attend.inc"
#include "kernels/decoder/pack.inc"
// clang-format on
constexpr DecoderOps kOps = SLUICE_OPS("avx2");
#undef SLUICE_TARGET
#undef SLUICE_WIDTH
#undef SLUICE_ROWS
#undef SLUICE_PANELS
#undef SLUICE_GATE_ROWS
#undef SLUICE_QUERIES
#undef SLUICE_INLINE
}  // namespace avx2
#endif

namespace base {
#define SLUICE_TARGET
#define SLUICE_WIDTH 4
#define SLUICE_ROWS 2
#define SLUICE_PANELS 1
#define SLUICE_GATE_ROWS 1
#define SLUICE_QUERIES 2
// clang-format off: each needs those before it.
#include "kernels/decoder/vector.inc"
#include "kernels/decoder/pointwise.inc"
#include "kernels/decoder/gemm.inc"
#include "kernels/decoder/attend.inc"
#include "kernels/decoder/pack.inc"
// clang-format on
constexpr DecoderOps kOps = SLUICE_OPS("base");
}  // namespace base

#if defined(__x86_64__)
// Whether two kinds give the same bits for random bf16 products, denormals included.
bool SameBits(const DecoderOps& a, const DecoderOps& b) {
  constexpr int64_t kM = 3, kN = 32, kK = 64;
  uint16_t x[kM * kK], w[kN * kK];
  uint32_t state = 1;
  const auto fill = [&](uint16_t* to, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      state = state * 1664525 + 1013904223;
      // The exponent stays below 255, so that neither numbers nor sums become infinite.
      const uint32_t exponent = i % 5 == 0 ? (state >> 8) % 4 : 40 + (state >> 8) % 170;
      to[i] = static_cast<uint16_t>((state >> 31) << 15 | (exponent / (i % 3 + 1)) << 7 |
                                    (state >> 17 & 0x7F));
    }
  };
  for (int round = 0; round < 64; ++round) {
    fill(x, kM * kK), fill(w, kN * kK);
    float ya[kM * kN], yb[kM * kN];
    a.gemm_bf16(x, kK, w, kM, kN, kK, ya, kN, false);
    b.gemm_bf16(x, kK, w, kM, kN, kK, yb, kN, false);
    if (std::memcmp(ya, yb, sizeof(ya)) != 0) return false;
  }
  return true;
}

// clang's __builtin_cpu_supports() does not know f16c.
bool HasF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

std::vector<const DecoderOps*> DetectKinds() {
  std::vector<const DecoderOps*> kinds;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("fma")) {
    if (__builtin_cpu_supports("avx512bf16") && SameBits(avx512bf16::kOps, avx512::kOps))
      kinds.push_back(&avx512bf16::kOps);
    kinds.push_back(&avx512::kOps);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c())
    kinds.push_back(&avx2::kOps);
#endif
  kinds.push_back(&base::kOps);
  return kinds;
}

}  // namespace

std::span<const DecoderOps* const> DecoderOpsKinds() {
  static const std::vector<const DecoderOps*>& kinds =
      *new std::vector<const DecoderOps*>(DetectKinds());
  return kinds;
}

namespace {

// Calls move(index in the packed weight, index in w) for each number of w [rows, K]. kPair is the
// number of consecutive k that are stored together in the packed weight: 1 in fp32, 2 in bf16.
template <int64_t kPair, typename Move>
void ForEachNumber(int64_t rows, int64_t k, int64_t first, const Move& move) {
  const int64_t panel = (k + kPair - 1) / kPair * kPair * kDecoderLanes;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t begin = (first + r) / kDecoderLanes * panel + (first + r) % kDecoderLanes * kPair;
    for (int64_t i = 0; i < k; ++i)
      move(begin + i / kPair * kPair * kDecoderLanes + i % kPair, r * k + i);
  }
}

// Calls panel(first row, first output) for each whole panel of 16 rows, and rest(first row, number
// of rows, first output) for the rows around them.
template <typename Panel, typename Rest>
void ForEachPanel(int64_t rows, int64_t first, const Panel& panel, const Rest& rest) {
  const int64_t before = std::min(rows, (kDecoderLanes - first % kDecoderLanes) % kDecoderLanes);
  if (before > 0) rest(0, before, first);
  int64_t r = before;
  for (; r + kDecoderLanes <= rows; r += kDecoderLanes) panel(r, first + r);
  if (r < rows) rest(r, rows - r, first + r);
}

// Moves w [rows, K] to or from a packed weight. Calls panel(index in the packed weight, index in w,
// words per row) for each whole panel, and number(index in the packed weight, index in w) for each
// number around them.
template <typename T, typename Panel, typename Number>
void MoveRows(int64_t rows, int64_t k, int64_t first, const Panel& panel, const Number& number) {
  constexpr int64_t kPair = sizeof(Word) / sizeof(T);
  const auto rest = [&](int64_t r, int64_t count, int64_t output) {
    ForEachNumber<kPair>(count, k, output,
                         [&](int64_t place, int64_t i) { number(place, r * k + i); });
  };
  if (k % kPair != 0) return rest(0, rows, first);
  ForEachPanel(
      rows, first, [&](int64_t r, int64_t output) { panel(output * k, r * k, k / kPair); }, rest);
}

template <typename T>
void PackRowsOf(const T* w, int64_t rows, int64_t k, int64_t first, T* packed) {
  MoveRows<T>(
      rows, k, first,
      [&](int64_t place, int64_t i, int64_t words) {
        BestDecoderOps().pack_panel(w + i, words, packed + place);
      },
      [&](int64_t place, int64_t i) { packed[place] = w[i]; });
}

template <typename T>
void UnpackRowsOf(const T* packed, int64_t rows, int64_t k, int64_t first, T* w) {
  MoveRows<T>(
      rows, k, first,
      [&](int64_t place, int64_t i, int64_t words) {
        BestDecoderOps().unpack_panel(packed + place, words, w + i);
      },
      [&](int64_t place, int64_t i) { w[i] = packed[place]; });
}

}  // namespace

void PackRows(const float* w, int64_t rows, int64_t k, int64_t first, float* packed) {
  PackRowsOf(w, rows, k, first, packed);
}
void PackRows(const uint16_t* w, int64_t rows, int64_t k, int64_t first, uint16_t* packed) {
  PackRowsOf(w, rows, k, first, packed);
}
void UnpackRows(const float* packed, int64_t rows, int64_t k, int64_t first, float* w) {
  UnpackRowsOf(packed, rows, k, first, w);
}
void UnpackRows(const uint16_t* packed, int64_t rows, int64_t k, int64_t first, uint16_t* w) {
  UnpackRowsOf(packed, rows, k, first, w);
}

void PackColumns(const float* w, int64_t ldw, int64_t k, int64_t n, float* packed) {
  for (int64_t c = 0; c < n; c += kDecoderLanes) {
    const int64_t width = std::min(kDecoderLanes, n - c);
    const float* from = w + c;
    float* to = packed + c * k;
    // A constant size, so that the compiler expands the copy in place.
    if (width == kDecoderLanes) {
      for (int64_t i = 0; i < k; ++i)
        std::copy_n(from + i * ldw, kDecoderLanes, to + i * kDecoderLanes);
    } else {
      for (int64_t i = 0; i < k; ++i) {
        std::copy_n(from + i * ldw, width, to + i * kDecoderLanes);
        std::fill_n(to + i * kDecoderLanes + width, kDecoderLanes - width, 0.0f);
      }
    }
  }
}

void PackColumns(const float* w, int64_t ldw, int64_t k, int64_t n, uint16_t* packed) {
  const auto pack = BestDecoderOps().pack_columns_bf16;
  const int64_t panel = RoundUpToPairs(k) * kDecoderLanes;
  int64_t c = 0;
  for (; c + kDecoderLanes <= n; c += kDecoderLanes, packed += panel) pack(w + c, ldw, k, packed);
  if (c == n) return;
  // The last panel is packed from a copy that is padded with zeros.
  std::vector<float> edge(k * kDecoderLanes);
  for (int64_t i = 0; i < k; ++i) std::copy_n(w + i * ldw + c, n - c, &edge[i * kDecoderLanes]);
  pack(edge.data(), kDecoderLanes, k, packed);
}

namespace {

// Writes `key` and `value`, which are already in the cache's type.
template <typename T>
void WriteKeyValue(const KvHead<T>& cache, int64_t block, int64_t offset, int64_t d, const T* key,
                   const T* value) {
  const int64_t width = RoundUpToLanes(d);
  T* keys = cache.data + block * cache.stride;
  T* values = keys + kKvBlockTokens * d + offset * width;
  for (int64_t i = 0; i < d; ++i) keys[i * kKvBlockTokens + offset] = key[i];
  std::copy_n(value, d, values);
  std::fill_n(values + d, width - d, T{0});
}

}  // namespace

void StoreKeyValue(const KvHead<float>& cache, int64_t block, int64_t offset, int64_t d,
                   const float* key, const float* value) {
  WriteKeyValue(cache, block, offset, d, key, value);
}

void StoreKeyValue(const KvHead<uint16_t>& cache, int64_t block, int64_t offset, int64_t d,
                   const float* key, const float* value) {
  thread_local std::vector<uint16_t> halves;
  halves.resize(2 * d);
  BestDecoderOps().to_f16(key, d, halves.data());
  BestDecoderOps().to_f16(value, d, halves.data() + d);
  WriteKeyValue(cache, block, offset, d, halves.data(), halves.data() + d);
}

}  // namespace sluice
