#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/decoder/op_cuda.h"

// Every sum has the order of op_cpu.cc: one thread computes an output of a product or an element of
// an attention's output, and 16 threads compute the partial sums of a norm. Fused multiply-adds are
// written out; the file is compiled without contraction.
namespace sluice::cuda {
namespace {

constexpr int kLanes = static_cast<int>(kDecoderLanes);
// The softmax is computed over this many positions at once, as in attend.inc.
constexpr int kChunk = 128;
constexpr int kRowsPerThread = 4;
constexpr int kThreads = 128;

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

// As SumLanes() in vector.inc.
__device__ float SumLanes(const float* lanes) {
  float s[8];
  for (int i = 0; i < 8; ++i) s[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) s[i] += s[i + 4];
  return (s[0] + s[2]) + (s[1] + s[3]);
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

// One thread block per row; its first 16 threads compute the partial sums.
__global__ void Norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  __shared__ float lanes[kLanes];
  x += int64_t{blockIdx.x} * n, y += int64_t{blockIdx.x} * n;
  if (threadIdx.x < kLanes) {
    float partial = 0;
    for (int64_t i = threadIdx.x; i < n; i += kLanes) partial = __fmaf_rn(x[i], x[i], partial);
    lanes[threadIdx.x] = partial;
  }
  __syncthreads();
  const float scale =
      __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(SumLanes(lanes), static_cast<float>(n)) + eps));
  for (int64_t i = threadIdx.x; i < n; i += kThreads) y[i] = x[i] * scale * weight[i];
}

__global__ void SwiGluKernel(const float* gate, const float* up, int64_t n, float* y) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) y[i] = SiluTimesUp(gate[i], up[i]);
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

// Called by the whole thread block. Replaces the scores [begin, end) of a chunk by their softmax
// weights (not normalised), and returns their maximum and sum to every thread.
__device__ void Softmax(float* scores, int begin, int end, float* lanes, float* max_out,
                        float* sum_out) {
  __syncthreads();
  float max = scores[begin];
  for (int p = begin + 1; p < end; ++p) max = scores[p] > max ? scores[p] : max;
  __syncthreads();
  const int p = threadIdx.x;
  scores[p] = p >= begin && p < end ? Exp(scores[p] - max) : 0.0f;
  __syncthreads();
  if (p < kLanes) {
    float partial = 0;
    for (int at = begin / kLanes * kLanes + p; at < end; at += kLanes) partial += scores[at];
    lanes[p] = partial;
  }
  __syncthreads();
  *max_out = max;
  *sum_out = SumLanes(lanes);
}

// One thread block per query. A thread computes the score of one position of a chunk, then one or
// two elements of the output.
template <typename T>
__global__ void AttendKernel(const PagedQuery<T>* queries, int d) {
  constexpr int kOwn = 2;  // Output elements per thread, so D <= 256.
  __shared__ float scores[kChunk], lanes[kLanes];
  const PagedQuery<T> job = queries[blockIdx.x];
  const int64_t width = (d + kLanes - 1) / kLanes * kLanes, begin = job.query.begin,
                end = job.query.end;
  const float scale = __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(d)));
  float out[kOwn] = {}, max = 0, sum = 0;

  // A chunk at a time, as in attend.inc.
  for (int64_t first = begin / kChunk * kChunk; first < end; first += kChunk) {
    const int low = begin > first ? static_cast<int>(begin - first) : 0,
              high = end - first < kChunk ? static_cast<int>(end - first) : kChunk;
    const int p = threadIdx.x;
    if (p < high) {
      const T* const keys = job.cache.data +
                            job.blocks[(first + p) / kKvBlockTokens] * job.cache.stride +
                            (first + p) % kKvBlockTokens;
      float score = 0;
      for (int i = 0; i < d; ++i)
        score = __fmaf_rn(job.query.q[i], Load(keys + i * kKvBlockTokens), score);
      scores[p] = score * scale;
    }

    // out = out * keep + (this chunk's output) * take, as in attend.inc.
    float chunk_max, chunk_sum, keep = 0, take = 1;
    Softmax(scores, low, high, lanes, &chunk_max, &chunk_sum);
    if (begin >= first) {  // This is the first chunk that the query attends to.
      max = chunk_max, sum = chunk_sum;
      keep = 1;
    } else {
      const float highest = chunk_max > max ? chunk_max : max;
      keep = Exp(max - highest), take = Exp(chunk_max - highest);
      sum = __fmaf_rn(sum, keep, chunk_sum * take);
      max = highest;
    }

    // Each thread adds all positions of the chunk for its own output elements.
    for (int own = 0; own < kOwn; ++own) {
      const int number = threadIdx.x + own * kThreads;
      if (number >= d) continue;
      float mixed = 0;
      for (int at = low; at < high; ++at) {
        const T* const block =
            job.cache.data + job.blocks[(first + at) / kKvBlockTokens] * job.cache.stride;
        mixed = __fmaf_rn(
            scores[at],
            Load(block + kKvBlockTokens * d + (first + at) % kKvBlockTokens * width + number),
            mixed);
      }
      out[own] = __fmaf_rn(out[own], keep, mixed * take);
    }
    __syncthreads();  // All threads have read the scores.
  }
  // The sum of the softmax is divided out at the end.
  for (int own = 0; own < kOwn; ++own) {
    const int number = threadIdx.x + own * kThreads;
    if (number < d) job.query.out[number] = __fdiv_rn(out[own], sum);
  }
}

// Softmax() takes one position of the chunk per thread.
static_assert(kThreads == kChunk);

const uint32_t* AsWords(const void* p) { return static_cast<const uint32_t*>(p); }
cudaStream_t AsStream(void* stream) { return static_cast<cudaStream_t>(stream); }

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
  Norm<<<static_cast<unsigned>(m), kThreads, 0, AsStream(stream)>>>(x, weight, n, eps, y);
  return cudaGetLastError();
}

int SwiGlu(const float* gate, const float* up, int64_t n, float* y, void* stream) {
  if (n == 0) return cudaSuccess;
  SwiGluKernel<<<static_cast<unsigned>((n + kThreads - 1) / kThreads), kThreads, 0,
                 AsStream(stream)>>>(gate, up, n, y);
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
  if (count == 0) return cudaSuccess;
  if (d > 2 * kThreads) return cudaErrorInvalidValue;
  AttendKernel<<<static_cast<unsigned>(count), kThreads, 0, AsStream(stream)>>>(
      queries, static_cast<int>(d));
  return cudaGetLastError();
}

int AttendF16(const PagedQuery<uint16_t>* queries, int64_t count, int64_t d, void* stream) {
  if (count == 0) return cudaSuccess;
  if (d > 2 * kThreads) return cudaErrorInvalidValue;
  AttendKernel<<<static_cast<unsigned>(count), kThreads, 0, AsStream(stream)>>>(
      queries, static_cast<int>(d));
  return cudaGetLastError();
}

}  // namespace sluice::cuda
