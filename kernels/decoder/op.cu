#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/decoder/op_cuda.h"

// Every sum has the order of op_cpu.cc. One thread computes a sum, or each of 16 threads computes a
// partial sum of it; the speed comes from many sums at a time. Fused multiply-adds are written out;
// the file is compiled without contraction.
namespace sluice::cuda {
namespace {

constexpr int kLanes = static_cast<int>(kDecoderLanes);
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kRowsPerThread = 4;
constexpr int kThreads = 128;

const uint32_t* AsWords(const void* p) { return static_cast<const uint32_t*>(p); }
cudaStream_t AsStream(void* stream) { return static_cast<cudaStream_t>(stream); }

// As Exp() in vector.inc.
__device__ float Exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = __fmaf_rn(x, 1.44269504f, 12582912.0f), n = shifted - 12582912.0f;
  const float r = __fmaf_rn(n, 2.12194440e-4f, __fmaf_rn(n, -0.693359375f, x));
  float e = 1.0f / 5040;
  e = __fmaf_rn(e, r, 1.0f / 720);
  e = __fmaf_rn(e, r, 1.0f / 120);
  e = __fmaf_rn(e, r, 1.0f / 24);
  e = __fmaf_rn(e, r, 1.0f / 6);
  e = __fmaf_rn(e, r, 0.5f);
  e = __fmaf_rn(e, r, 1.0f);
  e = __fmaf_rn(e, r, 1.0f);
  return e * __int_as_float((__float_as_int(shifted) - 0x4B400000 + 127) << 23);
}

__device__ float SiluTimesUp(float gate, float up) { return gate / (1.0f + Exp(-gate)) * up; }

// As SumLanes() in vector.inc, of the numbers of 16 neighbouring lanes. All of them get the sum.
__device__ float SumLanes(unsigned mask, float x) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(mask, x, offset);
  return x;
}

// As RoundToBf16() in vector.inc.
__device__ uint16_t ToBf16(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

__device__ void Store(float x, float* to) { *to = x; }
__device__ void Store(float x, uint16_t* to) { *to = ToBf16(x); }
__device__ float Load(const float* from) { return *from; }
__device__ float Load(const uint16_t* from) {
  return __half2float(*reinterpret_cast<const __half*>(from));
}

// One step of a product: 4 bytes of x and of a panel's lane, as in gemm.inc.
struct F32Dot {
  __device__ static float Add(float sum, uint32_t x, uint32_t w) {
    return __fmaf_rn(__uint_as_float(x), __uint_as_float(w), sum);
  }
};
// Pairs of bf16 numbers, the odd one first; denormals count as zero.
struct Bf16Dot {
  __device__ static float Fma(uint32_t a, uint32_t b, float c) {
    float out;
    asm("fma.rn.ftz.f32 %0, %1, %2, %3;"
        : "=f"(out)
        : "f"(__uint_as_float(a)), "f"(__uint_as_float(b)), "f"(c));
    return out;
  }
  __device__ static float Add(float sum, uint32_t x, uint32_t w) {
    return Fma(x << 16, w << 16, Fma(x & 0xFFFF0000u, w & 0xFFFF0000u, sum));
  }
};

// Computes sums[r] = row first + r of x times lane `lane` of a panel, each as one chain over all
// steps.
template <typename Dot>
__device__ void ComputeSums(const uint32_t* x, int64_t ldx, const uint32_t* panel, int lane,
                            int64_t first, int64_t m, int64_t steps,
                            float (&sums)[kRowsPerThread]) {
  for (float& sum : sums) sum = 0;
  for (int64_t i = 0; i < steps; ++i) {
    const uint32_t w = panel[i * kLanes + lane];
    for (int r = 0; r < kRowsPerThread; ++r) {
      if (first + r < m) sums[r] = Dot::Add(sums[r], x[(first + r) * ldx + i], w);
    }
  }
}

// One thread block computes the 16 outputs of a panel for several rows, so that neighbouring
// threads read neighbouring memory of the panel.
template <typename Dot>
__global__ void Product(const uint32_t* x, int64_t ldx, const uint32_t* packed, int64_t m,
                        int64_t n, int64_t steps, float* y, int64_t ldy, bool add) {
  const int lane = threadIdx.x % kLanes;
  const int64_t first =
      (int64_t{blockIdx.y} * (kThreads / kLanes) + threadIdx.x / kLanes) * kRowsPerThread;
  const int64_t output = int64_t{blockIdx.x} * kLanes + lane;
  if (first >= m || output >= n) return;
  float sums[kRowsPerThread];
  ComputeSums<Dot>(x, ldx, packed + int64_t{blockIdx.x} * steps * kLanes, lane, first, m, steps,
                   sums);
  for (int64_t r = first; r < m && r < first + kRowsPerThread; ++r) {
    float* const to = y + r * ldy + output;
    *to = add ? *to + sums[r - first] : sums[r - first];
  }
}

// The same with one gate panel and one up panel.
template <typename Dot, typename T>
__global__ void GatedProduct(const uint32_t* x, int64_t ldx, const uint32_t* packed, int64_t m,
                             int64_t n, int64_t steps, T* y, int64_t ldy) {
  const int lane = threadIdx.x % kLanes;
  const int64_t first =
      (int64_t{blockIdx.y} * (kThreads / kLanes) + threadIdx.x / kLanes) * kRowsPerThread;
  const int64_t output = int64_t{blockIdx.x} * kLanes + lane;
  if (first >= m || output >= n) return;
  const uint32_t* const panels = packed + int64_t{blockIdx.x} * 2 * steps * kLanes;
  float gates[kRowsPerThread], ups[kRowsPerThread];
  ComputeSums<Dot>(x, ldx, panels, lane, first, m, steps, gates);
  ComputeSums<Dot>(x, ldx, panels + steps * kLanes, lane, first, m, steps, ups);
  for (int64_t r = first; r < m && r < first + kRowsPerThread; ++r)
    Store(SiluTimesUp(gates[r - first], ups[r - first]), y + r * ldy + output);
}

dim3 Grid(int64_t m, int64_t n) {
  constexpr int64_t kRows = kThreads / kLanes * kRowsPerThread;
  return dim3(static_cast<unsigned>((n + kLanes - 1) / kLanes),
              static_cast<unsigned>((m + kRows - 1) / kRows));
}

// ---- Row by row.

// One thread block per row. All threads load, and the first 16 compute the partial sums.
constexpr int kNormThreads = 256;

__global__ void __launch_bounds__(kNormThreads)
    Norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  constexpr int kAtOnce = 4096;
  __shared__ float numbers[kAtOnce], scale_of_row;
  x += int64_t{blockIdx.x} * n, y += int64_t{blockIdx.x} * n;
  float partial = 0;
  for (int64_t first = 0; first < n; first += kAtOnce) {
    const int count = static_cast<int>(min(n - first, int64_t{kAtOnce}));
    __syncthreads();  // The numbers before are no longer read.
#pragma unroll 8
    for (int i = threadIdx.x; i < count; i += kNormThreads) numbers[i] = x[first + i];
    __syncthreads();
    if (threadIdx.x < kLanes) {
#pragma unroll 16
      for (int i = threadIdx.x; i < count; i += kLanes)
        partial = __fmaf_rn(numbers[i], numbers[i], partial);
    }
  }
  if (threadIdx.x < kLanes) {
    const float sum = SumLanes(kAllLanes >> (kWarp - kLanes), partial);
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(sum, static_cast<float>(n)) + eps));
    if (threadIdx.x == 0) scale_of_row = scale;
  }
  __syncthreads();
  const float scale = scale_of_row;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < n; i += kNormThreads)
    y[i] = (n <= kAtOnce ? numbers[i] : x[i]) * scale * weight[i];
}

// A thread computes four numbers, so that their loads do not wait for each other.
constexpr int kSwiGluEach = 4;

__global__ void __launch_bounds__(kThreads)
    SwiGluKernel(const float* gate, const float* up, int64_t n, float* y) {
  const int64_t first = int64_t{blockIdx.x} * kThreads * kSwiGluEach + threadIdx.x;
  float gates[kSwiGluEach], ups[kSwiGluEach];
#pragma unroll
  for (int j = 0; j < kSwiGluEach; ++j) {
    const int64_t i = first + j * kThreads;
    if (i < n) gates[j] = gate[i], ups[j] = up[i];
  }
#pragma unroll
  for (int j = 0; j < kSwiGluEach; ++j) {
    const int64_t i = first + j * kThreads;
    if (i < n) y[i] = SiluTimesUp(gates[j], ups[j]);
  }
}

// One thread block per row.
__global__ void Rotate(float* x, int64_t ldx, int64_t heads, const int32_t* positions,
                       const float* cos, const float* sin, float sign, int64_t half) {
  const int64_t angles = int64_t{positions[blockIdx.x]} * half;
  for (int64_t i = threadIdx.x; i < heads * half; i += kThreads) {
    float* const a = x + int64_t{blockIdx.x} * ldx + i / half * 2 * half + i % half;
    float* const b = a + half;
    const float c = cos[angles + i % half], s = sin[angles + i % half] * sign, first = *a,
                second = *b;
    *a = first * c - second * s;
    *b = second * c + first * s;
  }
}

// ---- Attention

constexpr int kMaxHead = 256;  // Largest D.
// The softmax is computed over this many positions at once, as in attend.inc.
constexpr int kChunk = 128;
constexpr int kChunks = 4;  // That a thread block processes at a time.

// One thread block per query, with 128 threads per chunk. A thread computes the score of one
// position of its chunk, then one or two elements of the chunk's output. Then each thread merges
// the chunks for one element of the query's output. A chunk at a time would have too few loads on
// their way, because there are often fewer queries than the card could run at a time.
template <typename T>
__global__ void __launch_bounds__(kChunks* kChunk, 2)
    AttendKernel(const PagedQuery<T>* queries, int d) {
  constexpr int kBlocks = kChunk / kKvBlockTokens;  // KV blocks of a chunk.
  constexpr int kLoads = 16;                        // Of a thread that are on their way at a time.
  static_assert(kKvBlockTokens == kWarp && kMaxHead <= kChunks * kChunk);
  __shared__ float q[kMaxHead], outs[kChunks][kMaxHead];
  __shared__ float weights[kChunks][kChunk], warp_max[kChunks][kBlocks];
  __shared__ float maxes[kChunks], sums[kChunks];
  const PagedQuery<T> job = queries[blockIdx.x];
  const int64_t width = (d + kLanes - 1) / kLanes * kLanes, begin = job.query.begin,
                end = job.query.end;
  const float scale = __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(d)));
  const int chunk = threadIdx.x / kChunk, p = threadIdx.x % kChunk, warp = p / kWarp;
  for (int i = threadIdx.x; i < d; i += kChunks * kChunk) q[i] = job.query.q[i];
  __syncthreads();

  float out = 0, highest = 0, sum = 0;
  for (int64_t round = begin / kChunk * kChunk; round < end; round += kChunks * kChunk) {
    const int64_t first = round + chunk * kChunk;
    // The chunk's positions that the query attends to: none if low >= high.
    const int low = static_cast<int>(begin > first ? min(begin - first, int64_t{kChunk}) : 0),
              high = static_cast<int>(end > first ? min(end - first, int64_t{kChunk}) : 0);

    const bool attends = p >= low && p < high;
    float score = 0;
    if (attends) {
      const T* const keys = job.cache.data +
                            job.blocks[(first + p) / kKvBlockTokens] * job.cache.stride +
                            p % kKvBlockTokens;
#pragma unroll kLoads
      for (int i = 0; i < d; ++i) score = __fmaf_rn(q[i], Load(keys + i * kKvBlockTokens), score);
      score = score * scale;
    }
    float chunk_max = attends ? score : -INFINITY;
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      chunk_max = fmaxf(chunk_max, __shfl_xor_sync(kAllLanes, chunk_max, offset));
    if (p % kWarp == 0) warp_max[chunk][warp] = chunk_max;
    __syncthreads();
    for (int w = 0; w < kBlocks; ++w) chunk_max = fmaxf(chunk_max, warp_max[chunk][w]);
    weights[chunk][p] = attends ? Exp(score - chunk_max) : 0.0f;
    __syncthreads();

    // Weights outside the query's positions are 0, which changes no sum.
    float partial = 0;
    for (int i = p % kLanes; i < kChunk; i += kLanes) partial += weights[chunk][i];
    partial = SumLanes(kAllLanes, partial);
    if (p == 0) maxes[chunk] = chunk_max, sums[chunk] = partial;

    for (int element = p; element < d; element += kChunk) {
      float mixed = 0;
      for (int b = 0; b < kBlocks; ++b) {
        const int from = max(low - b * kWarp, 0), to = min(high - b * kWarp, kWarp);
        if (from >= to) continue;
        const T* const values = job.cache.data +
                                job.blocks[first / kKvBlockTokens + b] * job.cache.stride +
                                kKvBlockTokens * d + element;
#pragma unroll kLoads
        for (int i = from; i < to; ++i)
          mixed = __fmaf_rn(weights[chunk][b * kWarp + i], Load(values + i * width), mixed);
      }
      outs[chunk][element] = mixed;
    }
    __syncthreads();

    // out = out * keep + (a chunk's output) * take, as in attend.inc.
    for (int c = 0; c < kChunks && round + c * kChunk < end; ++c) {
      float keep = 1, take = 1;
      if (begin >= round + c * kChunk) {  // This is the first chunk that the query attends to.
        highest = maxes[c], sum = sums[c];
      } else {
        const float before = highest;
        highest = fmaxf(before, maxes[c]);
        keep = Exp(before - highest), take = Exp(maxes[c] - highest);
        sum = __fmaf_rn(sum, keep, sums[c] * take);
      }
      if (threadIdx.x < d) out = __fmaf_rn(out, keep, outs[c][threadIdx.x] * take);
    }
  }
  // The sum of the softmax is divided out at the end.
  if (threadIdx.x < d) job.query.out[threadIdx.x] = __fdiv_rn(out, sum);
}

template <typename T>
int LaunchAttend(const PagedQuery<T>* queries, int64_t count, int64_t d, void* stream) {
  if (count == 0) return cudaSuccess;
  if (d > kMaxHead) return cudaErrorInvalidValue;
  AttendKernel<T><<<static_cast<unsigned>(count), kChunks * kChunk, 0, AsStream(stream)>>>(
      queries, static_cast<int>(d));
  return cudaGetLastError();
}

}  // namespace

int Gemm(const float* x, int64_t ldx, const float* packed, int64_t m, int64_t n, int64_t k,
         float* y, int64_t ldy, bool add, void* stream) {
  if (m == 0) return cudaSuccess;
  Product<F32Dot><<<Grid(m, n), kThreads, 0, AsStream(stream)>>>(AsWords(x), ldx, AsWords(packed),
                                                                 m, n, k, y, ldy, add);
  return cudaGetLastError();
}

int GemmBf16(const uint16_t* x, int64_t ldx, const uint16_t* packed, int64_t m, int64_t n,
             int64_t k, float* y, int64_t ldy, bool add, void* stream) {
  if (m == 0) return cudaSuccess;
  Product<Bf16Dot><<<Grid(m, n), kThreads, 0, AsStream(stream)>>>(
      AsWords(x), ldx / 2, AsWords(packed), m, n, k / 2, y, ldy, add);
  return cudaGetLastError();
}

int GateUp(const float* x, int64_t ldx, const float* packed, int64_t m, int64_t n, int64_t k,
           float* y, int64_t ldy, void* stream) {
  if (m == 0) return cudaSuccess;
  GatedProduct<F32Dot><<<Grid(m, n), kThreads, 0, AsStream(stream)>>>(
      AsWords(x), ldx, AsWords(packed), m, n, k, y, ldy);
  return cudaGetLastError();
}

int GateUpBf16(const uint16_t* x, int64_t ldx, const uint16_t* packed, int64_t m, int64_t n,
               int64_t k, uint16_t* y, int64_t ldy, void* stream) {
  if (m == 0) return cudaSuccess;
  GatedProduct<Bf16Dot><<<Grid(m, n), kThreads, 0, AsStream(stream)>>>(
      AsWords(x), ldx / 2, AsWords(packed), m, n, k / 2, y, ldy);
  return cudaGetLastError();
}

int RmsNorm(const float* x, const float* weight, int64_t m, int64_t n, float eps, float* y,
            void* stream) {
  if (m == 0) return cudaSuccess;
  Norm<<<static_cast<unsigned>(m), kNormThreads, 0, AsStream(stream)>>>(x, weight, n, eps, y);
  return cudaGetLastError();
}

int SwiGlu(const float* gate, const float* up, int64_t n, float* y, void* stream) {
  if (n == 0) return cudaSuccess;
  constexpr int64_t kEach = kThreads * kSwiGluEach;
  SwiGluKernel<<<static_cast<unsigned>((n + kEach - 1) / kEach), kThreads, 0, AsStream(stream)>>>(
      gate, up, n, y);
  return cudaGetLastError();
}

int Rope(float* x, int64_t ldx, int64_t m, int64_t heads, const int32_t* positions,
         const float* cos, const float* sin, float sign, int64_t half, void* stream) {
  if (m == 0) return cudaSuccess;
  Rotate<<<static_cast<unsigned>(m), kThreads, 0, AsStream(stream)>>>(x, ldx, heads, positions, cos,
                                                                      sin, sign, half);
  return cudaGetLastError();
}

int Attend(const PagedQuery<float>* queries, int64_t count, int64_t d, void* stream) {
  return LaunchAttend(queries, count, d, stream);
}

int AttendF16(const PagedQuery<uint16_t>* queries, int64_t count, int64_t d, void* stream) {
  return LaunchAttend(queries, count, d, stream);
}

}  // namespace sluice::cuda
