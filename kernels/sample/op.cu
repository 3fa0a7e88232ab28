#include "kernels/sample/op.h"

#include <cuda_runtime.h>

#include <cfloat>

#include "kernels/sample/math.h"

// A row is drawn in three steps:
//
//   Prepare   a thread block per row: finds the maximum and the cuts
//   Race      a warp per chunk of 1024 tokens: sums the softmax, and bounds the scores in the chunk
//   Finish    a thread block per row: adds the sums of the chunks, and finds the winner
//
// Every sum has the order of op_cpu.cc: 16 strided partial sums per chunk, a fixed tree, chunks
// from left to right. The maximum, the winner of the race and the integer sums that find a cut do
// not depend on the order.
namespace sluice {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kThreads = 1024;  // Of a block that works on a row.
constexpr int kRaceWarps = 4;   // Of a block of Race(): one for each of its chunks.

// What Prepare() finds out about a row.
struct Prepared {
  unsigned long long lowest = 0;  // Tokens with a lower Rank() are cut.
  float max = 0;                  // Of z'.
  float min_p = 0;  // Tokens less likely than this share of the most likely one are cut.
};
constexpr unsigned long long kNoRace = ~0ull;  // As `lowest`: the draw is already known.

__host__ __device__ int32_t Chunks(int32_t vocab) {
  return (vocab + sample::kChunk - 1) / sample::kChunk;
}

// An integer that orders tokens from least to most likely, or scores from worst to best: by value,
// and equal values by falling id.
__device__ unsigned long long Rank(float value, int32_t id) {
  return static_cast<unsigned long long>(sample::OrderKey(value)) << 32 |
         static_cast<uint32_t>(~id);
}
__device__ int32_t IdOfRank(unsigned long long rank) {
  return ~static_cast<int32_t>(static_cast<uint32_t>(rank));
}
__device__ float ValueOfRank(unsigned long long rank) {
  const auto key = static_cast<uint32_t>(rank >> 32);
  return sample::FromBits(key >> 31 ? key & 0x7fffffffu : ~key);
}

struct alignas(16) Four {
  float z[4];
};
__device__ float Largest(const Four& four) {
  return fmaxf(fmaxf(four.z[0], four.z[1]), fmaxf(four.z[2], four.z[3]));
}

// The logits of a row, which are read four at a time. Ids from `vocab` on count as banned.
struct Logits {
  SampleRow row;
  int32_t vocab;
  bool aligned;  // Four logits can be read at once.

  __device__ Logits(const SampleRow& row, int32_t vocab)
      : row(row),
        vocab(vocab),
        aligned(vocab % 4 == 0 && reinterpret_cast<uintptr_t>(row.logits) % sizeof(Four) == 0) {}

  // The logits from `v` on, as they are.
  __device__ Four Raw(int32_t v) const {
    if (aligned && v < vocab) return *reinterpret_cast<const Four*>(row.logits + v);
    Four raw;
    for (int w = 0; w < 4; ++w) raw.z[w] = v + w < vocab ? row.logits[v + w] : -INFINITY;
    return raw;
  }
  __device__ void Ban(int32_t v, Four* four) const {
    for (int32_t i = 0; i < row.banned_count; ++i) {
      for (int w = 0; w < 4; ++w) {
        if (row.banned[i] == v + w) four->z[w] = -INFINITY;
      }
    }
  }
  __device__ float Scale(float logit) const {
    return row.temperature == 0 || row.temperature == 1 ? logit : logit / row.temperature;
  }
  // z' from `v` on, made of the logits as they are; -inf for tokens that are banned or cut.
  __device__ Four Scaled(const Prepared& prepared, int32_t v, Four four) const {
    for (float& z : four.z) z = Scale(z);
    Ban(v, &four);
    for (int w = 0; w < 4; ++w) {
      float& z = four.z[w];
      if (prepared.lowest > 0 && Rank(z, v + w) < prepared.lowest) z = -INFINITY;
      if (prepared.min_p > 0 && sample::Exp(z - prepared.max) < prepared.min_p) z = -INFINITY;
    }
    return four;
  }
  // The same for one token.
  __device__ float Scaled(const Prepared& prepared, int32_t v) const {
    return Scaled(prepared, v - v % 4, Raw(v - v % 4)).z[v % 4];
  }

  // Calls f(v, Raw(v)) for each v of this thread, of a block that shares the row. kLoads loads are
  // on their way at a time.
  template <int kLoads, typename F>
  __device__ void ForEach(F f) const {
    constexpr int kStride = 4 * kThreads;
    for (int32_t first = 4 * threadIdx.x; first < vocab; first += kLoads * kStride) {
      Four fours[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) fours[i] = Raw(first + i * kStride);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) f(first + i * kStride, fours[i]);
    }
  }
};

__device__ unsigned long long MaxOverWarp(unsigned long long mine) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    mine = max(mine, __shfl_xor_sync(kAllLanes, mine, offset));
  return mine;
}

// Returns the largest number of the threads of the block, which are kThreads.
__device__ unsigned long long MaxOverBlock(unsigned long long mine) {
  static_assert(kThreads == kWarp * kWarp);
  __shared__ unsigned long long warps[kWarp];
  mine = MaxOverWarp(mine);
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = mine;
  __syncthreads();
  mine = MaxOverWarp(warps[threadIdx.x % kWarp]);
  __syncthreads();  // All threads have read the numbers before the next call overwrites them.
  return mine;
}

// Returns the sum over the threads of the warp up to this one.
__device__ unsigned long long SumOverWarp(unsigned long long mine) {
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const unsigned long long before = __shfl_up_sync(kAllLanes, mine, offset);
    if (threadIdx.x % kWarp >= offset) mine += before;
  }
  return mine;
}

// Returns the sum over the threads of the block before this one, and in `total` that over all.
__device__ unsigned long long SumBefore(unsigned long long mine, unsigned long long* total) {
  __shared__ unsigned long long warps[kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned long long sum = SumOverWarp(mine);
  if (lane == kWarp - 1) warps[warp] = sum;
  __syncthreads();
  const unsigned long long sums = SumOverWarp(warps[lane]);
  __syncthreads();
  *total = __shfl_sync(kAllLanes, sums, kWarp - 1);
  const unsigned long long before = __shfl_sync(kAllLanes, sums, max(warp - 1, 0));
  return (warp > 0 ? before : 0) + sum - mine;
}

// Executed by a whole thread block: returns the lowest rank of the shortest prefix of the tokens
// left by `before` that has top_k tokens, or with top_k = 0 the share top_p of their mass. Returns
// before.lowest if that is all of them. The rank is found digit by digit, the highest first: the
// tokens with the digits found so far are sorted into buckets by their next digit.
__device__ unsigned long long Select(const Logits& logits, const Prepared& before, int32_t top_k,
                                     double top_p) {
  constexpr int kDigit = 11, kBuckets = 1 << kDigit, kMine = kBuckets / kThreads;
  // Weight of each bucket. Shared memory adds at most 32 bits at once, so carries are added to
  // `high`.
  __shared__ uint32_t low[kBuckets], high[kBuckets];
  __shared__ unsigned long long digit, inside;  // The bucket of the last token, and its weight.
  __shared__ unsigned long long above;          // Weight of the tokens before that bucket.
  if (threadIdx.x == 0) above = 0;
  const int id_bits = 32 - __clz(logits.vocab - 1);
  unsigned long long prefix = 0, wanted = 0;
  for (int shift = 64; shift > 0;) {
    const int bits = min(kDigit, shift > 32 ? shift - 32 : shift);
    const unsigned long long known = shift < 64 ? ~0ull << shift : 0;
    shift -= bits;
    for (int i = threadIdx.x; i < kBuckets; i += kThreads) low[i] = high[i] = 0;
    __syncthreads();
    // Few tokens have the known digits, so they are first searched by their z'.
    const float lowest = known == 0 ? -FLT_MAX : ValueOfRank(prefix);
    const float highest = known == 0 ? FLT_MAX : ValueOfRank(prefix | ~known);
    logits.ForEach<2>([&](int32_t v, Four four) {
      four = logits.Scaled(before, v, four);
      for (int w = 0; w < 4; ++w) {
        if (!(four.z[w] >= lowest && four.z[w] <= highest)) continue;
        const unsigned long long rank = Rank(four.z[w], v + w);
        if (((rank ^ prefix) & known) != 0) continue;
        const uint64_t weight = top_k > 0 ? 1 : sample::Mass(sample::Exp(four.z[w] - before.max));
        const auto bucket = static_cast<uint32_t>(rank >> shift) & (kBuckets - 1);
        const auto part = static_cast<uint32_t>(weight);
        const uint32_t old = atomicAdd(&low[bucket], part);
        const uint32_t carry = static_cast<uint32_t>(weight >> 32) + (old + part < part ? 1 : 0);
        if (carry > 0) atomicAdd(&high[bucket], carry);
      }
    });
    __syncthreads();

    // The highest buckets come first. A thread adds up kMine of them.
    unsigned long long weights[kMine], sum = 0, total;
    for (int i = 0; i < kMine; ++i) {
      const int bucket = kBuckets - 1 - (threadIdx.x * kMine + i);
      weights[i] = low[bucket] + (static_cast<unsigned long long>(high[bucket]) << 32);
      sum += weights[i];
    }
    unsigned long long first = above;
    first += SumBefore(sum, &total);
    if (known == 0) {
      if (top_k > 0 && static_cast<unsigned long long>(top_k) >= total) return before.lowest;
      wanted = top_k > 0 ? top_k : sample::MassWanted(top_p, total);
    }
    for (int i = 0; i < kMine; ++i) {
      if (first < wanted && first + weights[i] >= wanted) {
        digit = kBuckets - 1 - (threadIdx.x * kMine + i);
        inside = weights[i];
        above = first;
      }
      first += weights[i];
    }
    __syncthreads();
    prefix |= digit << shift;
    if (shift > 32) continue;
    // The tokens that are left have the same z', so the same weight. Often all are kept.
    const uint64_t each =
        top_k > 0 ? 1 : sample::Mass(sample::Exp(ValueOfRank(prefix) - before.max));
    if (above + inside - wanted < each) break;
    if (shift == 32) {  // The highest bits of Rank() are the same for all ids.
      shift = id_bits;
      prefix |= (1ull << 32) - (1ull << id_bits);
    }
  }
  __syncthreads();  // All threads have read the result before the next call overwrites it.
  return max(prefix, before.lowest);  // `before` may cut some of the tokens with the same z'.
}

__global__ void __launch_bounds__(kThreads)
    Prepare(const SampleRow* rows, int32_t vocab, Prepared* prepared, SampleDraw* draws) {
  const Logits logits(rows[blockIdx.x], vocab);
  const SampleRow& row = logits.row;

  // Division by the temperature keeps the order, so z' is computed only of the best logit. As on
  // the CPU, the logits of banned tokens are checked for NaN and +inf too.
  float most = -INFINITY, most_allowed = -INFINITY;  // With and without banned tokens.
  int32_t at = 0;
  bool bad = false;
  logits.ForEach<4>([&](int32_t v, Four four) {
    for (const float z : four.z) bad |= !(z < INFINITY);
    float most_here = Largest(four);
    most = fmaxf(most, most_here);
    if (row.banned_count > 0) {
      logits.Ban(v, &four);
      most_here = Largest(four);
    }
    if (most_here > most_allowed) {
      most_allowed = most_here;
      at = v;
    }
  });
  Four four = logits.Raw(at);
  logits.Ban(at, &four);
  unsigned long long best = 0;
  for (int w = 0; w < 4; ++w) best = max(best, Rank(four.z[w], at + w));
  best = MaxOverBlock(best);
  bad = __syncthreads_or(bad || !(logits.Scale(most) < INFINITY));
  bad |= ValueOfRank(best) == -INFINITY;  // All tokens are banned, or have no probability.

  Prepared found;
  if (!bad) found.max = logits.Scale(row.logits[IdOfRank(best)]);
  bad |= found.max == -INFINITY;
  if (bad || row.temperature == 0) {
    found.lowest = kNoRace;
    if (threadIdx.x == 0) draws[blockIdx.x] = {.token = bad ? -1 : IdOfRank(best)};
  } else {
    if (row.top_k > 0) found.lowest = Select(logits, found, row.top_k, 1);
    if (row.top_p < 1) found.lowest = Select(logits, found, 0, row.top_p);
    found.min_p = row.min_p;
  }
  if (threadIdx.x == 0) prepared[blockIdx.x] = found;
}

// An upper bound of sample::Gumbel(x): -log(-log1p(-w)) < -log(w). The bits of a float are nearly
// its logarithm, and never above it: log2(1 + m) >= m. For the large noise of small x, the bound is
// at most 0.07 too high; 0.001 of this is for errors of rounding.
__device__ float NoiseBound(uint32_t x) {
  constexpr float kLn2 = 0.693147181f;
  const float log2_bits = static_cast<float>(sample::Bits(static_cast<float>(x)));
  return __fmaf_rn(log2_bits, -kLn2 * 0x1p-23f, (32 + 127) * kLn2 + 1e-3f);
}

__device__ sample::Words Noise(const SampleRow& row, int32_t v) {
  return sample::Philox(static_cast<uint32_t>(v) / 4, row.position, row.member, row.stream,
                        static_cast<uint32_t>(row.key), static_cast<uint32_t>(row.key >> 32));
}

// Computes for each chunk its sum of the softmax, and an upper bound of its scores. A warp computes
// the exponentials of a chunk, 128 tokens at a time. The bound of ten blocks per multiprocessor
// limits the registers, because more warps help more than more registers.
__global__ void __launch_bounds__(kRaceWarps* kWarp, 10)
    Race(const SampleRow* rows, int32_t vocab, const Prepared* prepared, float* sums,
         float* bounds) {
  constexpr int kStride = sample::kChunk + sample::kLanes;  // Avoids conflicts between banks.
  __shared__ alignas(16) float exps[kRaceWarps][kStride];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Prepared found = prepared[blockIdx.x];
  if (found.lowest == kNoRace) return;
  const Logits logits(rows[blockIdx.x], vocab);
  const int32_t first = blockIdx.y * kRaceWarps;  // Chunk of the first warp.
  const int32_t begin = (first + warp) * sample::kChunk, chunks = Chunks(vocab);
  const int64_t place = int64_t{blockIdx.x} * chunks + first;  // Of that chunk's results.

  float bound = -INFINITY;
  Four next = logits.Raw(begin + 4 * lane);
  for (int i = 4 * lane; i < sample::kChunk; i += 4 * kWarp) {
    const int32_t v = begin + i;
    Four four = logits.Scaled(found, v, next);
    next = logits.Raw(v + 4 * kWarp);  // Arrives while these are computed.
    const sample::Words x = Noise(logits.row, v);
    for (int w = 0; w < 4; ++w) {
      bound = fmaxf(bound, four.z[w] + NoiseBound(x.c[w]));
      four.z[w] = sample::Exp(four.z[w] - found.max);
    }
    *reinterpret_cast<Four*>(&exps[warp][i]) = four;
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    bound = fmaxf(bound, __shfl_xor_sync(kAllLanes, bound, offset));
  if (lane == 0 && first + warp < chunks) bounds[place + warp] = bound;

  // A few threads add them up: each makes four of the 16 strided sums of a chunk.
  __syncthreads();
  constexpr int kAdders = kRaceWarps * sample::kLanes / 4;
  if (threadIdx.x >= kAdders) return;
  const int part = lane % 4, chunk = lane / 4;
  Four sum = {};
#pragma unroll 8
  for (int i = 4 * part; i < sample::kChunk; i += sample::kLanes) {
    const Four e = *reinterpret_cast<const Four*>(&exps[chunk][i]);
    for (int w = 0; w < 4; ++w) sum.z[w] = sum.z[w] + e.z[w];
  }
  // The tree of SumLanes().
  for (int offset = 2; offset > 0; offset /= 2) {
    for (float& z : sum.z) z = z + __shfl_xor_sync(kAllLanes >> (kWarp - kAdders), z, offset);
  }
  if (part == 0 && first + chunk < chunks)
    sums[place + chunk] = (sum.z[0] + sum.z[2]) + (sum.z[1] + sum.z[3]);
}

__global__ void __launch_bounds__(kThreads)
    Finish(const SampleRow* rows, int32_t vocab, const Prepared* prepared, const float* all_sums,
           float* all_bounds, SampleDraw* draws) {
  static_assert(sample::kChunk == kThreads);
  __shared__ float sums[kThreads];
  const Prepared found = prepared[blockIdx.x];
  if (found.lowest == kNoRace) return;
  const Logits logits(rows[blockIdx.x], vocab);
  const int32_t chunks = Chunks(vocab);
  const float* const sums_of_row = all_sums + int64_t{blockIdx.x} * chunks;
  float* const bounds = all_bounds + int64_t{blockIdx.x} * chunks;

  // The sum of the chunks' sums. Those after the last chunk are 0, which changes nothing.
  float total = 0;
  for (int32_t first = 0; first < chunks; first += kThreads) {
    const int32_t c = first + threadIdx.x;
    __syncthreads();  // The sums of the round before are no longer read.
    sums[threadIdx.x] = c < chunks ? sums_of_row[c] : 0.0f;
    __syncthreads();
    if (threadIdx.x == 0) {
      constexpr int kAtOnce = 32;  // Loads that do not wait for the additions.
      for (int i = 0; i < kThreads && first + i < chunks; i += kAtOnce) {
#pragma unroll
        for (int j = i; j < i + kAtOnce; ++j) total = total + sums[j];
      }
    }
  }

  // Computes the scores of the chunk that may have the best one, until no other chunk may.
  unsigned long long best = 0;
  while (true) {
    unsigned long long mine = 0;
    for (int32_t c = threadIdx.x; c < chunks; c += kThreads) mine = max(mine, Rank(bounds[c], c));
    const unsigned long long next = MaxOverBlock(mine);
    if (next >> 32 < best >> 32) break;
    const int32_t chunk = IdOfRank(next);
    if (chunk % kThreads == threadIdx.x) bounds[chunk] = -INFINITY;
    const int32_t v = chunk * sample::kChunk + threadIdx.x;
    unsigned long long score = 0;
    if (v < vocab)
      score = Rank(logits.Scaled(found, v) + sample::Gumbel(Noise(logits.row, v).c[v % 4]), v);
    best = max(best, MaxOverBlock(score));
  }
  SampleDraw draw{.token = IdOfRank(best)};

  if (logits.row.kept != nullptr) {
    for (int32_t first = 0; first < vocab; first += kThreads) {
      const int32_t v = first + threadIdx.x;
      const bool keeps = v < vocab && logits.Scaled(found, v) > -INFINITY;
      unsigned long long here;
      const unsigned long long before = SumBefore(keeps, &here);
      if (keeps) logits.row.kept[draw.kept + before] = v;
      draw.kept += static_cast<int32_t>(here);
    }
  }
  if (threadIdx.x != 0) return;
  draw.logprob = (logits.Scaled(found, draw.token) - found.max) - sample::Log(total);
  draws[blockIdx.x] = draw;
}

}  // namespace

int64_t SampleCudaWorkspace(int64_t row_count, int64_t vocab) {
  const int64_t chunks = Chunks(static_cast<int32_t>(vocab));
  return row_count * static_cast<int64_t>(sizeof(Prepared) + 2 * sizeof(float) * chunks);
}

int SampleCuda(const SampleRow* rows, int64_t row_count, int64_t vocab, SampleDraw* draws,
               void* workspace, void* stream) {
  if (row_count == 0) return cudaSuccess;
  const auto s = static_cast<cudaStream_t>(stream);
  const auto blocks = static_cast<unsigned>(row_count);
  const auto ids = static_cast<int32_t>(vocab);
  const int32_t chunks = Chunks(ids);
  const dim3 race_blocks(blocks, static_cast<unsigned>((chunks + kRaceWarps - 1) / kRaceWarps));
  auto* const prepared = static_cast<Prepared*>(workspace);
  auto* const sums = reinterpret_cast<float*>(prepared + row_count);
  float* const bounds = sums + row_count * chunks;
  Prepare<<<blocks, kThreads, 0, s>>>(rows, ids, prepared, draws);
  Race<<<race_blocks, kRaceWarps * kWarp, 0, s>>>(rows, ids, prepared, sums, bounds);
  Finish<<<blocks, kThreads, 0, s>>>(rows, ids, prepared, sums, bounds, draws);
  return cudaGetLastError();
}

}  // namespace sluice
