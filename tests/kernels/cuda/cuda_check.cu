#include <cuda_runtime.h>

#include <cmath>

#include "tests/kernels/cuda/check.h"

// The simplest kernels for copying and for arithmetic. They show what the card can reach, and the
// speed of the other kernels is compared with theirs. tools/gpu_check.py finds them by the names
// "copy" and "fma".
namespace sluice::cuda_check {
namespace {

constexpr int kThreads = 256;
constexpr int kChains = 8;  // Independent, to hide the latency of each.

__global__ void Copy(const float4* from, int64_t count, float4* to) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride)
    to[i] = from[i];
}

// y[i] is kChains times the result of `steps` steps of x = x / 2 + 1 that start with x = i.
__global__ void Fma(int steps, float* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  float x[kChains];
  for (float& chain : x) chain = static_cast<float>(i);
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (float& chain : x) chain = __fmaf_rn(chain, 0.5f, 1.0f);
  }
  float sum = 0;
  for (const float chain : x) sum += chain;
  y[i] = sum;
}

CUDA_CASE(CopyCopies) {
  const std::vector<float> x = RandomFloats(1, 4 * 1000);
  OnDevice<float> from(x), to(x.size());
  Copy<<<3, kThreads>>>(reinterpret_cast<const float4*>(from.data()), 1000,
                        reinterpret_cast<float4*>(to.data()));
  CUDA_OK(cudaGetLastError());
  CUDA_EXPECT(SameBits(to.CopyToHost(), x));
}

CUDA_CASE(FmaComputesItsChains) {
  OnDevice<float> y(2 * kThreads);
  Fma<<<2, kThreads>>>(4, y.data());
  CUDA_OK(cudaGetLastError());
  const std::vector<float> back = y.CopyToHost();
  // Each chain gives i / 16 + 1 / 8 + 1 / 4 + 1 / 2 + 1, exactly.
  for (size_t i = 0; i < back.size(); ++i)
    CUDA_EXPECT(back[i] == kChains * (static_cast<float>(i) / 16 + 1.875f)) << "at " << i;
}

CUDA_BENCH(Bandwidth) {
  const int64_t count = Small() ? 1000 : int64_t{16} << 20;  // 256 MiB: more than any cache.
  OnDevice<float> from(ManyFloats(4 * count)), to(4 * count);
  Measure("copy", 2.0 * 16 * count, 0, [&] {
    Copy<<<Small() ? 3 : 2048, kThreads>>>(reinterpret_cast<const float4*>(from.data()), count,
                                           reinterpret_cast<float4*>(to.data()));
  });
}

CUDA_BENCH(Arithmetic) {
  const unsigned blocks = Small() ? 2 : 4096;
  const int steps = Small() ? 4 : 4096;
  OnDevice<float> y(int64_t{blocks} * kThreads);
  Measure("fma", 0, 2.0 * kChains * steps * blocks * kThreads,
          [&] { Fma<<<blocks, kThreads>>>(steps, y.data()); });
}

}  // namespace
}  // namespace sluice::cuda_check
