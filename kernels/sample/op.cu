#include "kernels/sample/op.h"

#include <cuda_runtime.h>

#include "kernels/sample/math.h"

// One block draws one row. The order of every sum is op_cpu.cc's: 16 strided partials per chunk of 1024, a fixed tree, chunks
// left to right; maxima and the race's winner do not depend on order.
namespace sluice {
namespace {

constexpr int kThreads = 1024;
constexpr int kChunksAtOnce = kThreads / sample::kLanes;

__device__ float Scaled(const SampleRow& row, int64_t v) {
  for (int32_t i = 0; i < row.banned_count; ++i) {
    if (row.banned[i] == v) return -INFINITY;
  }
  return row.temperature > 0 ? row.logits[v] / row.temperature : row.logits[v];
}

// The higher score, and of equal ones the lower id; over the block, in scores[0] and ids[0].
__device__ void ReduceBest(float* scores, int32_t* ids) {
  for (int width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) {
      const float score = scores[threadIdx.x + width];
      const int32_t id = ids[threadIdx.x + width];
      if (score > scores[threadIdx.x] || (score == scores[threadIdx.x] && id < ids[threadIdx.x])) {
        scores[threadIdx.x] = score;
        ids[threadIdx.x] = id;
      }
    }
  }
  __syncthreads();
}

__global__ void SampleKernel(const SampleRow* rows, int64_t vocab, SampleDraw* draws) {
  __shared__ float scores[kThreads];
  __shared__ int32_t ids[kThreads];
  __shared__ float total;
  const SampleRow row = rows[blockIdx.x];

  // The best logit: the maximum of the softmax, and the answer at temperature 0. As on the CPU a banned token's own value is
  // looked at too.
  float best = -INFINITY;
  int32_t winner = 0;
  bool bad = false;
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
    const float raw = row.temperature > 0 ? row.logits[v] / row.temperature : row.logits[v];
    bad |= !(raw < INFINITY);
    const float z = Scaled(row, v);
    if (z > best) {
      best = z;
      winner = static_cast<int32_t>(v);
    }
  }
  scores[threadIdx.x] = best;
  ids[threadIdx.x] = best > -INFINITY ? winner : INT32_MAX;
  bad = __syncthreads_or(bad);
  ReduceBest(scores, ids);
  const float max = scores[0];
  const int32_t top = ids[0];
  __syncthreads();
  if (bad || !(max > -INFINITY) || row.temperature == 0) {
    if (threadIdx.x == 0) draws[blockIdx.x] = bad || !(max > -INFINITY) ? SampleDraw{-1, 0.0f} : SampleDraw{top, 0.0f};
    return;
  }

  // The race: each thread takes counters of four tokens.
  best = -INFINITY;
  winner = INT32_MAX;
  for (int64_t c = threadIdx.x; c * 4 < vocab; c += kThreads) {
    const sample::Words x = sample::Philox(static_cast<uint32_t>(c), row.position, row.member, row.stream,
                                           static_cast<uint32_t>(row.key), static_cast<uint32_t>(row.key >> 32));
    for (int w = 0; w < 4 && c * 4 + w < vocab; ++w) {
      const float score = Scaled(row, c * 4 + w) + sample::Gumbel(x.c[w]);
      if (score > best) {
        best = score;
        winner = static_cast<int32_t>(c * 4 + w);
      }
    }
  }
  scores[threadIdx.x] = best;
  ids[threadIdx.x] = winner;
  ReduceBest(scores, ids);
  winner = ids[0];
  if (threadIdx.x == 0) total = 0;
  __syncthreads();

  const int lane = threadIdx.x % sample::kLanes, place = threadIdx.x / sample::kLanes;
  for (int64_t first = 0; first < vocab; first += int64_t{kChunksAtOnce} * sample::kChunk) {
    const int64_t begin = first + int64_t{place} * sample::kChunk;
    float partial = 0;
    for (int64_t v = begin + lane; v < begin + sample::kChunk && v < vocab; v += sample::kLanes) {
      partial = partial + sample::Exp(Scaled(row, v) - max);
    }
    scores[threadIdx.x] = partial;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 0; i < kChunksAtOnce && first + int64_t{i} * sample::kChunk < vocab; ++i) {
        total = total + sample::Fold(scores + i * sample::kLanes);
      }
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) draws[blockIdx.x] = SampleDraw{winner, (Scaled(row, winner) - max) - sample::Log(total)};
}

}  // namespace

int SampleCuda(const SampleRow* rows, int64_t row_count, int64_t vocab, SampleDraw* draws, void* stream) {
  if (row_count == 0) return cudaSuccess;
  SampleKernel<<<static_cast<unsigned>(row_count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(rows, vocab, draws);
  return cudaGetLastError();
}

}  // namespace sluice
