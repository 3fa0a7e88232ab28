#include "kernels/decoder/op.h"

#include <algorithm>
#include <vector>

namespace sluice {
namespace {

#if defined(__x86_64__)
namespace avx512 {
#define SLUICE_TARGET __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,prefer-vector-width=512")))
#define SLUICE_WIDTH 16
#define SLUICE_ROWS 12
#define SLUICE_PANELS 2
#include "kernels/decoder/op_cpu.inc"
#undef SLUICE_TARGET
#undef SLUICE_WIDTH
#undef SLUICE_ROWS
#undef SLUICE_PANELS
constexpr DecoderOps kOps = MakeOps("avx512");
}  // namespace avx512

namespace avx2 {
#define SLUICE_TARGET __attribute__((target("avx2,fma")))
#define SLUICE_WIDTH 8
#define SLUICE_ROWS 6
#define SLUICE_PANELS 1
#include "kernels/decoder/op_cpu.inc"
#undef SLUICE_TARGET
#undef SLUICE_WIDTH
#undef SLUICE_ROWS
#undef SLUICE_PANELS
constexpr DecoderOps kOps = MakeOps("avx2");
}  // namespace avx2
#endif

namespace base {
#define SLUICE_TARGET
#define SLUICE_WIDTH 4
#define SLUICE_ROWS 2
#define SLUICE_PANELS 1
#include "kernels/decoder/op_cpu.inc"
#undef SLUICE_TARGET
#undef SLUICE_WIDTH
#undef SLUICE_ROWS
#undef SLUICE_PANELS
constexpr DecoderOps kOps = MakeOps("base");
}  // namespace base

std::vector<const DecoderOps*> Detect() {
  std::vector<const DecoderOps*> kinds;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("fma")) {
    kinds.push_back(&avx512::kOps);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) kinds.push_back(&avx2::kOps);
#endif
  kinds.push_back(&base::kOps);
  return kinds;
}

}  // namespace

absl::Span<const DecoderOps* const> DecoderOpsKinds() {
  static const std::vector<const DecoderOps*>& kinds = *new std::vector<const DecoderOps*>(Detect());
  return kinds;
}

void PackRows(const float* w, int64_t rows, int64_t k, int64_t first, float* packed) {
  for (int64_t r = 0; r < rows; ++r) {
    float* to = packed + (first + r) / kDecoderLanes * k * kDecoderLanes + (first + r) % kDecoderLanes;
    for (int64_t i = 0; i < k; ++i) to[i * kDecoderLanes] = w[r * k + i];
  }
}

void PackColumns(const float* w, int64_t k, int64_t n, float* packed) {
  for (int64_t c = 0; c < n; c += kDecoderLanes) {
    const int64_t width = std::min(kDecoderLanes, n - c);
    const float* from = w + c;
    float* to = packed + c * k;
    if (width == kDecoderLanes) {  // A constant size, which the compiler copies in place.
      for (int64_t i = 0; i < k; ++i) std::copy_n(from + i * n, kDecoderLanes, to + i * kDecoderLanes);
    } else {
      for (int64_t i = 0; i < k; ++i) std::copy_n(from + i * n, width, to + i * kDecoderLanes);
    }
  }
}

void StoreKeyValue(const KvHead& cache, int64_t block, int64_t offset, int64_t d, const float* key, const float* value) {
  const int64_t width = RoundUpToLanes(d);
  float* keys = cache.data + block * cache.stride;
  float* values = keys + KvHead::KeyFloats(d) + offset * width;
  for (int64_t i = 0; i < d; ++i) keys[i * kKvBlockTokens + offset] = key[i];
  for (int64_t i = 0; i < d; ++i) values[i] = value[i];
  for (int64_t i = d; i < width; ++i) values[i] = 0;
}

}  // namespace sluice
