#include "kernels/sample/op.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/sample/math.h"

namespace sluice {
namespace {

using sample::kChunk;
using sample::kLanes;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

SampleDraw Greedy(const float* z, int64_t vocab) {
  int64_t best = 0;
  for (int64_t v = 1; v < vocab; ++v) {
    if (z[v] > z[best]) best = v;
  }
  return {static_cast<int32_t>(best), 0.0f};
}

// z [V] of one row, scaled, banned tokens at -inf; `max` its largest. False: not finite, or nothing is left.
SLUICE_SAMPLE_INLINE bool Prepare(const SampleRow& row, int64_t vocab, float* z, float* max) {
  const float temperature = row.temperature > 0 ? row.temperature : 1.0f;
  float best = -kInfinity;
  int bad = 0;
  for (int64_t v = 0; v < vocab; ++v) {
    const float scaled = row.logits[v] / temperature;
    bad |= !(scaled < kInfinity);  // NaN too.
    z[v] = scaled;
  }
  if (bad) return false;
  for (int32_t i = 0; i < row.banned_count; ++i) {
    if (row.banned[i] >= 0 && row.banned[i] < vocab) z[row.banned[i]] = -kInfinity;
  }
  for (int64_t v = 0; v < vocab; ++v) best = z[v] > best ? z[v] : best;
  *max = best;
  return best > -kInfinity;
}

// sum over v of exp(z_v - max).
SLUICE_SAMPLE_INLINE float SumExp(const float* z, int64_t vocab, float max) {
  float total = 0;
  for (int64_t begin = 0; begin < vocab; begin += kChunk) {
    const int64_t end = std::min<int64_t>(begin + kChunk, vocab);
    float lanes[kLanes] = {};
    int64_t v = begin;
    for (; v + kLanes <= end; v += kLanes) {
      for (int l = 0; l < kLanes; ++l) lanes[l] = lanes[l] + sample::Exp(z[v + l] - max);
    }
    for (int l = 0; v + l < end; ++l) lanes[l] = lanes[l] + sample::Exp(z[v + l] - max);
    total = total + sample::Fold(lanes);
  }
  return total;
}

// argmax of z_v + g_v.
SLUICE_SAMPLE_INLINE int32_t Race(const SampleRow& row, const float* z, int64_t vocab) {
  constexpr int kBlock = 256;  // Vocabulary entries raced at once: 64 counters.
  const uint32_t k0 = static_cast<uint32_t>(row.key);
  const uint32_t k1 = static_cast<uint32_t>(row.key >> 32);
  float best = -kInfinity;
  int32_t winner = 0;
  for (int64_t begin = 0; begin < vocab; begin += kBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kBlock, vocab - begin));
    float block_max = -kInfinity;
    for (int i = 0; i < count; ++i) block_max = z[begin + i] > block_max ? z[begin + i] : block_max;
    if (!(block_max + sample::kMaxNoise > best)) continue;
    uint32_t words[4][kBlock / 4];
    const uint32_t base = static_cast<uint32_t>(begin / 4);
    const int counters = (count + 3) / 4;
    for (int c = 0; c < counters; ++c) {
      const sample::Words x = sample::Philox(base + c, row.position, row.member, row.stream, k0, k1);
      for (int w = 0; w < 4; ++w) words[w][c] = x.c[w];
    }
    float noise[4][kBlock / 4];
    for (int w = 0; w < 4; ++w) {
      for (int c = 0; c < counters; ++c) noise[w][c] = sample::Gumbel(words[w][c]);
    }
    for (int i = 0; i < count; ++i) {
      const float score = z[begin + i] + noise[i & 3][i >> 2];
      if (score > best) {
        best = score;
        winner = static_cast<int32_t>(begin + i);
      }
    }
  }
  return winner;
}

SLUICE_SAMPLE_INLINE void SampleRows(const SampleRow* rows, int64_t row_count, int64_t vocab, float* z, SampleDraw* draws) {
  for (int64_t r = 0; r < row_count; ++r) {
    const SampleRow& row = rows[r];
    float max;
    if (!Prepare(row, vocab, z, &max)) {
      draws[r] = {};
    } else if (row.temperature == 0) {
      draws[r] = Greedy(z, vocab);
    } else {
      const int32_t token = Race(row, z, vocab);
      draws[r] = {token, (z[token] - max) - sample::Log(SumExp(z, vocab, max))};
    }
  }
}

using RowsFunction = void (*)(const SampleRow*, int64_t, int64_t, float*, SampleDraw*);

void SampleRowsBase(const SampleRow* rows, int64_t row_count, int64_t vocab, float* z, SampleDraw* draws) {
  SampleRows(rows, row_count, vocab, z, draws);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2"))) void SampleRowsAvx2(const SampleRow* rows, int64_t row_count, int64_t vocab, float* z,
                                                    SampleDraw* draws) {
  SampleRows(rows, row_count, vocab, z, draws);
}

__attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,prefer-vector-width=512"))) void SampleRowsAvx512(
    const SampleRow* rows, int64_t row_count, int64_t vocab, float* z, SampleDraw* draws) {
  SampleRows(rows, row_count, vocab, z, draws);
}

RowsFunction Pick() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw")) {
    return SampleRowsAvx512;
  }
  return __builtin_cpu_supports("avx2") ? SampleRowsAvx2 : SampleRowsBase;
}
#else
RowsFunction Pick() { return SampleRowsBase; }
#endif

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  const sample::Words x = sample::Philox(counter[0], counter[1], counter[2], counter[3], key[0], key[1]);
  return {x.c[0], x.c[1], x.c[2], x.c[3]};
}

void SampleCpu(const SampleRow* rows, int64_t row_count, int64_t vocab, SampleDraw* draws) {
  static const RowsFunction function = Pick();
  thread_local std::vector<float> scratch;
  if (scratch.size() < static_cast<size_t>(vocab)) scratch.resize(vocab);
  function(rows, row_count, vocab, scratch.data(), draws);
}

void SampleCpuPortable(const SampleRow* rows, int64_t row_count, int64_t vocab, SampleDraw* draws) {
  std::vector<float> scratch(vocab);
  SampleRowsBase(rows, row_count, vocab, scratch.data(), draws);
}

}  // namespace sluice
