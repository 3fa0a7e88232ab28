#include "tests/bench/engine/machine.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

namespace sluice::bench {
namespace {

clockid_t g_clock = CLOCK_MONOTONIC;

#if defined(__x86_64__)
#define SLUICE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SLUICE_CLONES
#endif

typedef float Wide __attribute__((vector_size(64)));

// Reads n floats. The result is one lane of their sum, which is enough to keep the compiler from
// leaving the loads out.
SLUICE_CLONES float Sum(const float* from, int64_t n) {
  Wide sum[8] = {};
  for (int64_t i = 0; i < n; i += 128) {
    for (int v = 0; v < 8; ++v) sum[v] += *reinterpret_cast<const Wide*>(from + i + v * 16);
  }
  for (int v = 1; v < 8; ++v) sum[0] += sum[v];
  return sum[0][0];
}

// Multiply-adds run in independent chains. Each chain starts with another number, so that the
// compiler cannot merge them.
constexpr int64_t kRounds = 1000000;
constexpr int kChains = 12;

typedef float Vec16 __attribute__((vector_size(64)));
typedef float Vec8 __attribute__((vector_size(32)));
typedef float Vec4 __attribute__((vector_size(16)));

// Runs the chains on vectors of one register. The compiler fuses the multiply-adds if the caller's
// instruction set can (this file is compiled with contraction).
template <typename Vec>
inline __attribute__((always_inline)) float RunChains(float x) {
  const Vec a = Vec{} + x;
  Vec sum[kChains];
  for (int j = 0; j < kChains; ++j) sum[j] = a + static_cast<float>(j);
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) sum[j] = sum[j] * a + a;
  }
  for (int j = 1; j < kChains; ++j) sum[0] += sum[j];
  return sum[0][0];
}

float Chains4(float x) { return RunChains<Vec4>(x); }
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) float Chains8(float x) { return RunChains<Vec8>(x); }
__attribute__((target("avx512f,prefer-vector-width=512"))) float Chains16(float x) {
  return RunChains<Vec16>(x);
}

__attribute__((target("avx512f,avx512bf16"))) float ChainsBf16(float x) {
  const __m512bh a = (__m512bh)_mm512_set1_ps(x);
  __m512 sum[kChains];
  for (int j = 0; j < kChains; ++j) sum[j] = _mm512_set1_ps(x + static_cast<float>(j));
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) sum[j] = _mm512_dpbf16_ps(sum[j], a, a);
  }
  for (int j = 1; j < kChains; ++j) sum[0] = _mm512_add_ps(sum[0], sum[j]);
  return _mm512_cvtss_f32(sum[0]);
}
#endif

// Runs work(thread) in every thread, several times. Returns the highest amount / seconds.
double MeasureBestRate(int threads, double amount, const std::function<void(int)>& work) {
  double best = 0;
  for (int round = 0; round < 4; ++round) {
    const double start = Seconds();
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(work, t);
    work(0);
    for (std::thread& t : others) t.join();
    best = std::max(best, amount / (Seconds() - start));
  }
  return best;
}

volatile float g_sink;

}  // namespace

double Seconds() {
  timespec now;
  clock_gettime(g_clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void UseCpuTime() { g_clock = CLOCK_PROCESS_CPUTIME_ID; }

double ReadBandwidth(int threads) {
  constexpr int64_t kBytes = 256 << 20;  // By all threads together.
  static float* const memory = [] {
    void* const p = std::aligned_alloc(2 << 20, kBytes);
    madvise(p, kBytes, MADV_HUGEPAGE);
    std::fill_n(static_cast<float*>(p), kBytes / 4, 1.0f);
    return static_cast<float*>(p);
  }();
  const int64_t share = kBytes / 4 / threads / 128 * 128;
  return MeasureBestRate(threads, static_cast<double>(share * 4 * threads),
                         [&](int t) { g_sink = Sum(memory + t * share, share); });
}

namespace {

// Returns the rate of chains(x), whose vectors have `lanes` lanes with `operations` operations per
// lane and multiply-add.
double MeasurePeak(int threads, float (*chains)(float), int lanes, int operations) {
  volatile float x = 0.5f;
  return MeasureBestRate(threads,
                         static_cast<double>(operations) * lanes * kChains * kRounds * threads,
                         [&](int) { g_sink = chains(x); });
}

}  // namespace

double PeakFlops(int threads) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return MeasurePeak(threads, Chains16, 16, 2);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return MeasurePeak(threads, Chains8, 8, 2);
#endif
  return MeasurePeak(threads, Chains4, 4, 2);
}

double PeakFlopsBf16(int threads) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512bf16")) return MeasurePeak(threads, ChainsBf16, 16, 4);
#endif
  return PeakFlops(threads);
}

}  // namespace sluice::bench
