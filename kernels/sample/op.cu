#include "kernels/sample/op.h"

#include <cuda_runtime.h>

#include "kernels/sample/math.h"

// One thread block draws one row. Every sum has the order of op_cpu.cc: 16 strided partial sums per
// chunk of 1024, a fixed tree, chunks from left to right. The maximum, the winner of the race and
// the integer sums that find a cut do not depend on the order.
namespace sluice {
namespace {

constexpr int kThreads = 1024;
constexpr int kChunksAtOnce = kThreads / sample::kLanes;

// z' of token `v`; -inf if it is banned.
__device__ float ScaledLogit(const SampleRow& row, int64_t v) {
  for (int32_t i = 0; i < row.banned_count; ++i) {
    if (row.banned[i] == v) return -INFINITY;
  }
  return row.temperature > 0 ? row.logits[v] / row.temperature : row.logits[v];
}

// The distribution of a row with the cuts found so far: gives z' of `v`, or -inf if it is cut.
struct Distribution {
  SampleRow row;
  float max;
  sample::Cut cut;
  float min_p;

  __device__ float operator()(int64_t v) const {
    const float z = ScaledLogit(row, v);
    if (!sample::Keeps(cut, z, v)) return -INFINITY;
    return min_p > 0 && sample::Exp(z - max) < min_p ? -INFINITY : z;
  }
};

// As Select() in op_cpu.cc, executed by the whole thread block: finds the prefix of the tokens left
// by `before` whose masses (or counts, if not by_mass) add up to at least `wanted`.
__device__ sample::Cut Select(const Distribution& before, int64_t vocab, bool by_mass,
                              unsigned long long wanted) {
  __shared__ unsigned long long buckets[sample::kMostBuckets];
  __shared__ unsigned long long above, inside, ties;
  __shared__ uint32_t key;
  __shared__ int32_t last;
  if (threadIdx.x == 0) {
    above = 0;
    ties = 0;
    key = 0;
    last = -1;
  }
  for (int digit = 0; digit < sample::kDigits; ++digit) {
    const int shift = sample::DigitShift(digit), bits = sample::DigitBits(digit);
    const uint32_t mask = (1u << bits) - 1;
    for (int i = threadIdx.x; i <= static_cast<int>(mask); i += kThreads) buckets[i] = 0;
    __syncthreads();
    for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
      const float z = before(v);
      const uint32_t k = sample::OrderKey(z);
      if (digit > 0 && (k ^ key) >> (shift + bits) != 0) continue;
      const unsigned long long weight = by_mass ? sample::Mass(sample::Exp(z - before.max)) : 1ull;
      if (weight > 0) atomicAdd(&buckets[(k >> shift) & mask], weight);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t bucket = mask;
      while (bucket > 0 && above + buckets[bucket] < wanted) above += buckets[bucket--];
      inside = buckets[bucket];
      key |= bucket << shift;
    }
    __syncthreads();
  }

  unsigned long long mine = 0;
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads)
    mine += sample::OrderKey(before(v)) == key;
  if (mine > 0) atomicAdd(&ties, mine);
  __syncthreads();
  // Find the last kept token among those with this key: first the round of kThreads tokens that it
  // is in, then its place in this round.
  const unsigned long long each = inside / ties;
  unsigned long long left = (wanted - above + each - 1) / each;
  for (int64_t first = 0; first < vocab; first += kThreads) {
    const int64_t v = first + threadIdx.x;
    const unsigned long long here =
        __syncthreads_count(v < vocab && sample::OrderKey(before(v)) == key);
    if (here < left) {
      left -= here;
      continue;
    }
    if (threadIdx.x == 0) {
      for (int64_t id = first; left > 0; ++id) {
        if (sample::OrderKey(before(id)) != key) continue;
        last = static_cast<int32_t>(id);
        --left;
      }
    }
    break;
  }
  __syncthreads();
  const sample::Cut cut{key, last};
  __syncthreads();  // All threads have read the result before another selection overwrites it.
  return cut;
}

// Returns the sum over the threads of the block; it does not depend on the order.
__device__ unsigned long long SumOverBlock(unsigned long long mine) {
  __shared__ unsigned long long sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  if (mine > 0) atomicAdd(&sum, mine);
  __syncthreads();
  const unsigned long long all = sum;
  __syncthreads();
  return all;
}

// Finds the cuts of top-k, top-p and min-p.
__device__ Distribution FindCuts(const SampleRow& row, int64_t vocab, float max) {
  Distribution z{row, max, {}, 0.0f};
  if (row.top_k > 0) {
    unsigned long long finite = 0;
    for (int64_t v = threadIdx.x; v < vocab; v += kThreads) finite += z(v) > -INFINITY;
    if (static_cast<unsigned long long>(row.top_k) < SumOverBlock(finite))
      z.cut = Select(z, vocab, false, row.top_k);
  }
  if (row.top_p < 1) {
    unsigned long long mass = 0;
    for (int64_t v = threadIdx.x; v < vocab; v += kThreads)
      mass += sample::Mass(sample::Exp(z(v) - max));
    z.cut = Select(z, vocab, true, sample::MassWanted(row.top_p, SumOverBlock(mass)));
  }
  z.min_p = row.min_p;
  return z;
}

// Finds the highest score, and of equal ones the lowest id, over the thread block. The result is in
// scores[0] and ids[0].
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

  // The best logit: the maximum of the softmax, and the answer at temperature 0. As on the CPU, the
  // logit of a banned token is checked for NaN and +inf too.
  float best = -INFINITY;
  int32_t winner = 0;
  bool bad = false;
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
    const float raw = row.temperature > 0 ? row.logits[v] / row.temperature : row.logits[v];
    bad |= !(raw < INFINITY);
    const float z = ScaledLogit(row, v);
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
    if (threadIdx.x == 0)
      draws[blockIdx.x] =
          bad || !(max > -INFINITY) ? SampleDraw{-1, 0.0f, 0} : SampleDraw{top, 0.0f, 0};
    return;
  }

  const Distribution z_of = FindCuts(row, vocab, max);

  // The race. One counter of Philox gives the noise of four tokens.
  best = -INFINITY;
  winner = INT32_MAX;
  for (int64_t c = threadIdx.x; c * 4 < vocab; c += kThreads) {
    const sample::Words x =
        sample::Philox(static_cast<uint32_t>(c), row.position, row.member, row.stream,
                       static_cast<uint32_t>(row.key), static_cast<uint32_t>(row.key >> 32));
    for (int w = 0; w < 4 && c * 4 + w < vocab; ++w) {
      const float score = z_of(c * 4 + w) + sample::Gumbel(x.c[w]);
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

  // The sum of the softmax, in the order of op_cpu.cc.
  const int lane = threadIdx.x % sample::kLanes, place = threadIdx.x / sample::kLanes;
  for (int64_t first = 0; first < vocab; first += int64_t{kChunksAtOnce} * sample::kChunk) {
    const int64_t begin = first + int64_t{place} * sample::kChunk;
    float partial = 0;
    for (int64_t v = begin + lane; v < begin + sample::kChunk && v < vocab; v += sample::kLanes) {
      partial = partial + sample::Exp(z_of(v) - max);
    }
    scores[threadIdx.x] = partial;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 0; i < kChunksAtOnce && first + int64_t{i} * sample::kChunk < vocab; ++i) {
        total = total + sample::SumLanes(scores + i * sample::kLanes);
      }
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  SampleDraw draw{winner, (ScaledLogit(row, winner) - max) - sample::Log(total), 0};
  if (row.kept != nullptr) {
    for (int64_t v = 0; v < vocab; ++v) {
      if (z_of(v) > -INFINITY) row.kept[draw.kept++] = static_cast<int32_t>(v);
    }
  }
  draws[blockIdx.x] = draw;
}

}  // namespace

int SampleCuda(const SampleRow* rows, int64_t row_count, int64_t vocab, SampleDraw* draws,
               void* stream) {
  if (row_count == 0) return cudaSuccess;
  SampleKernel<<<static_cast<unsigned>(row_count), kThreads, 0,
                 static_cast<cudaStream_t>(stream)>>>(rows, vocab, draws);
  return cudaGetLastError();
}

}  // namespace sluice
