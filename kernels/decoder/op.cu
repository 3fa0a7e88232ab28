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
constexpr int kThreads = 128;

cudaStream_t AsStream(void* stream) { return static_cast<cudaStream_t>(stream); }

__device__ float At(const float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

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

// ---- Products. A step multiplies a word of x by a word of a panel, as in gemm.inc. A sum is one
// chain over all steps and cannot be split. A thread computes several sums, to have multiply-adds
// that do not wait for each other. Tensor cores cannot be used, not even in bf16: the chain rounds
// to fp32 after every product, but they add several products at a time, in an order of their own.

// A word is one fp32 number.
struct F32Dot {
  static constexpr int kParts = 1;                     // Numbers of a word.
  static constexpr uint32_t kMinusZero = 0x80000000u;  // A word of numbers -0.
  __device__ static float Part(uint32_t word, int) { return __uint_as_float(word); }
  __device__ static float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
};
// A word is a pair of bf16 numbers, the odd one first; denormals count as zero.
struct Bf16Dot {
  static constexpr int kParts = 2;
  static constexpr uint32_t kMinusZero = 0x80008000u;
  __device__ static float Part(uint32_t word, int part) {
    return __uint_as_float(part == 0 ? word & 0xFFFF0000u : word << 16);
  }
  __device__ static float Fma(float a, float b, float c) {
    float out;
    asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(out) : "f"(a), "f"(b), "f"(c));
    return out;
  }
};

// Writes neighbouring outputs to y [m, n], or adds them.
struct Plain {
  static constexpr int kPanels = 1;  // Panels for 16 outputs.
  int64_t m, n;
  float* y;
  int64_t ldy;
  bool add;
  template <int kCount>
  __device__ void Write(int64_t row, int64_t output, const float* sums, const float*) const {
    if (row >= m) return;
    float* const to = y + row * ldy + output;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (output + i < n) to[i] = add ? to[i] + sums[i] : sums[i];
    }
  }
};
// Writes silu(gate) * up. A gate panel is followed by its up panel.
template <typename T>
struct Gated {
  static constexpr int kPanels = 2;
  int64_t m, n;
  T* y;
  int64_t ldy;
  template <int kCount>
  __device__ void Write(int64_t row, int64_t output, const float* gates, const float* ups) const {
    if (row >= m) return;
    T* const to = y + row * ldy + output;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (output + i < n) Store(SiluTimesUp(gates[i], ups[i]), to + i);
    }
  }
};

// Both factors of a product, in words.
struct Operands {
  const uint32_t* x;  // [m, steps]
  int64_t ldx, m;
  const uint32_t* packed;  // [panels, steps, 16]
  int64_t panels, steps;
};

// Words after the last step are replaced: the numbers of x by -0, and those of a panel by 0. Their
// product is -0, and adding -0 changes no bits.
template <typename Dot>
__device__ uint32_t LoadX(const uint32_t* from, bool exists) {
  return exists ? *from : Dot::kMinusZero;
}
__device__ uint4 LoadPanel(const uint32_t* from, bool exists) {
  return exists ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
}

// The product of a few rows: its speed is that of reading the weight. A thread block computes 16
// outputs of 8 rows, one per thread. All threads load the next steps while the threads that have a
// row compute.
constexpr int kFewRows = kThreads / kLanes;

template <typename Dot, typename To>
__global__ void __launch_bounds__(kThreads) RowProduct(Operands in, To to) {
  constexpr int kPanels = To::kPanels;
  constexpr int kSteps = 256 / kPanels;  // At a time.
  // A load of all threads takes 32 steps of a panel, or 128 of a row.
  constexpr int kPanelLoads = kSteps * kLanes / 4 / kThreads, kXLoads = kSteps / kThreads;
  __shared__ alignas(16) uint32_t panels[2][kPanels][kSteps][kLanes];
  __shared__ alignas(16) uint32_t xs[2][kFewRows][kSteps];
  const int64_t panel = int64_t{blockIdx.x} * kPanels, row = int64_t{blockIdx.y} * kFewRows;
  const uint32_t* const panels_from = in.packed + panel * in.steps * kLanes + 4 * threadIdx.x;
  const uint32_t* const x_from = in.x + row * in.ldx + threadIdx.x;
  const int rows = static_cast<int>(min(in.m - row, int64_t{kFewRows}));

  uint4 next_panels[kPanels][kPanelLoads];
  uint32_t next_x[kFewRows][kXLoads];
  const auto load = [&](int64_t step) {
    const int64_t left = in.steps - step;
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
#pragma unroll
      for (int u = 0; u < kPanelLoads; ++u)
        next_panels[p][u] =
            LoadPanel(panels_from + (p * in.steps + step) * kLanes + u * 4 * kThreads,
                      u * kThreads / 4 + threadIdx.x / 4 < left);
    }
#pragma unroll
    for (int r = 0; r < kFewRows; ++r) {
#pragma unroll
      for (int u = 0; u < kXLoads; ++u)
        next_x[r][u] = LoadX<Dot>(x_from + r * in.ldx + step + u * kThreads,
                                  r < rows && u * kThreads + threadIdx.x < left);
    }
  };
  const auto store = [&](int buffer) {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
#pragma unroll
      for (int u = 0; u < kPanelLoads; ++u)
        *reinterpret_cast<uint4*>(
            &panels[buffer][p][(u * kThreads + threadIdx.x) / 4][threadIdx.x % 4 * 4]) =
            next_panels[p][u];
    }
#pragma unroll
    for (int r = 0; r < kFewRows; ++r) {
#pragma unroll
      for (int u = 0; u < kXLoads; ++u) xs[buffer][r][u * kThreads + threadIdx.x] = next_x[r][u];
    }
  };

  const int lane = threadIdx.x % kLanes, r = threadIdx.x / kLanes;
  float sums[kPanels] = {};
  load(0);
  int buffer = 0;
  for (int64_t step = 0; step < in.steps; step += kSteps, buffer ^= 1) {
    store(buffer);
    __syncthreads();
    load(step + kSteps);
    if (r >= rows) continue;
#pragma unroll 4
    for (int i = 0; i < kSteps; i += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(&xs[buffer][r][i]);
      const uint32_t words[] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int p = 0; p < kPanels; ++p) {
          const uint32_t w = panels[buffer][p][i + j][lane];
#pragma unroll
          for (int part = 0; part < Dot::kParts; ++part)
            sums[p] = Dot::Fma(Dot::Part(words[j], part), Dot::Part(w, part), sums[p]);
        }
      }
    }
  }
  to.template Write<1>(row + r, int64_t{blockIdx.x} * kLanes + lane, &sums[0], &sums[kPanels - 1]);
}

// The product of many rows: its speed is that of the multiply-adds, or of reading their operands
// from shared memory. A thread block computes a tile of the output, kNumbers numbers of the chains
// at a time. 16 threads share its rows, and kAcross threads its columns: a thread computes kRows
// neighbouring rows and kGroups groups of 4 columns, one from each part of the tile that all its
// threads cover together. The first half of the groups can thus be gate, and the second half up.
template <typename Dot, typename To, int kRows, int kGroups, int kAcross, int kNumbers>
__global__ void __launch_bounds__(16 * kAcross, 2) TileProduct(Operands in, To to) {
  constexpr int kParts = Dot::kParts, kSteps = kNumbers / kParts;  // At a time.
  constexpr int kTileThreads = 16 * kAcross, kTileRows = 16 * kRows, kGroupWidth = 4 * kAcross,
                kColumns = kGroups * kGroupWidth, kOutputs = kColumns / To::kPanels;
  // Numbers of the tile, as fp32: [part of a word and step][row or column]. The distances avoid
  // conflicts between banks when they are written.
  __shared__ alignas(16) float xs[2][kParts * kSteps][kTileRows + 4];
  __shared__ alignas(16) float ws[2][kParts * kSteps][kColumns + 16];
  const int64_t row = int64_t{blockIdx.y} * kTileRows, output = int64_t{blockIdx.x} * kOutputs;

  // A load of all threads takes 8 steps of kXRows rows, or all steps of kWPanels panels. Rows and
  // panels after the last one are replaced by it, and their sums are not written.
  constexpr int kXRows = kTileThreads / 8, kXLoads = kTileRows / kXRows, kEights = kSteps / 8,
                kFours = kSteps * kLanes / 4, kWPanels = kTileThreads / kFours,
                kWLoads = kColumns / kLanes / kWPanels;
  static_assert(kEights * 8 == kSteps && kWLoads * kWPanels * kLanes == kColumns);
  const int x_row = threadIdx.x / 8, x_step = threadIdx.x % 8;
  const int w_panel = threadIdx.x / kFours, w_step = threadIdx.x % kFours / 4,
            w_lane = threadIdx.x % 4 * 4;
  const uint32_t* x_from[kXLoads];
  const uint32_t* w_from[kWLoads];
#pragma unroll
  for (int u = 0; u < kXLoads; ++u)
    x_from[u] = in.x + min(row + x_row + u * kXRows, in.m - 1) * in.ldx + x_step;
#pragma unroll
  for (int u = 0; u < kWLoads; ++u) {
    const int column = (w_panel + u * kWPanels) * kLanes;
    const int64_t panel = (output + column % kOutputs) / kLanes * To::kPanels + column / kOutputs;
    w_from[u] = in.packed + (min(panel, in.panels - 1) * in.steps + w_step) * kLanes + w_lane;
  }
  uint32_t next_x[kXLoads][kEights];
  uint4 next_w[kWLoads];
  const auto load_some = [&](int64_t step, int64_t left) {
#pragma unroll
    for (int u = 0; u < kWLoads; ++u)
      next_w[u] = LoadPanel(w_from[u] + step * kLanes, w_step < left);
#pragma unroll
    for (int u = 0; u < kXLoads; ++u) {
#pragma unroll
      for (int e = 0; e < kEights; ++e)
        next_x[u][e] = LoadX<Dot>(x_from[u] + step + 8 * e, x_step + 8 * e < left);
    }
  };
  const auto load = [&](int64_t step) {
    if (in.steps - step >= kSteps) load_some(step, kSteps);  // Without conditions, which take time.
    else load_some(step, in.steps - step);
  };
  const auto store = [&](int buffer) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int u = 0; u < kXLoads; ++u) {
#pragma unroll
        for (int e = 0; e < kEights; ++e)
          xs[buffer][part * kSteps + 8 * e + x_step][x_row + u * kXRows] =
              Dot::Part(next_x[u][e], part);
      }
#pragma unroll
      for (int u = 0; u < kWLoads; ++u) {
        const uint4 w = next_w[u];
        *reinterpret_cast<float4*>(
            &ws[buffer][part * kSteps + w_step][(w_panel + u * kWPanels) * kLanes + w_lane]) =
            make_float4(Dot::Part(w.x, part), Dot::Part(w.y, part), Dot::Part(w.z, part),
                        Dot::Part(w.w, part));
      }
    }
  };

  // A warp covers 8 threads across and 4 down, so that it reads few different numbers.
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int across = lane % 8 + 8 * (warp % (kAcross / 8)),
            down = lane / 8 + 4 * (warp / (kAcross / 8));
  float sums[kRows][4 * kGroups] = {};
  load(0);
  store(0);
  __syncthreads();
  int buffer = 0;
  for (int64_t step = 0; step < in.steps; step += kSteps, buffer ^= 1) {
    // The last time, this loads and stores nothing useful. But if it depended on the same condition
    // as the store, the compiler would move it there, behind the multiply-adds that it overlaps.
    load(step + kSteps);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int at = part * kSteps + i;
        float4 a[kRows / 4], b[kGroups];
#pragma unroll
        for (int r = 0; r < kRows / 4; ++r)
          a[r] = *reinterpret_cast<const float4*>(&xs[buffer][at][down * kRows + 4 * r]);
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
          b[g] = *reinterpret_cast<const float4*>(&ws[buffer][at][g * kGroupWidth + 4 * across]);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int c = 0; c < 4 * kGroups; ++c)
            sums[r][c] = Dot::Fma(At(a[r / 4], r % 4), At(b[c / 4], c % 4), sums[r][c]);
        }
      }
    }
    store(buffer ^ 1);
    __syncthreads();
  }

  constexpr int kUp = kGroups / To::kPanels * (To::kPanels - 1);  // First group of up.
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int g = 0; g < kGroups / To::kPanels; ++g)
      to.template Write<4>(row + down * kRows + r, output + g * kGroupWidth + 4 * across,
                           &sums[r][4 * g], &sums[r][4 * (g + kUp)]);
  }
}

template <typename Dot, typename To, int kRows, int kGroups, int kAcross, int kNumbers>
void LaunchTiles(const Operands& in, const To& to, cudaStream_t stream) {
  constexpr int64_t kTileRows = 16 * kRows, kOutputs = 4 * kAcross * kGroups / To::kPanels;
  const dim3 grid(static_cast<unsigned>((to.n + kOutputs - 1) / kOutputs),
                  static_cast<unsigned>((to.m + kTileRows - 1) / kTileRows));
  TileProduct<Dot, To, kRows, kGroups, kAcross, kNumbers>
      <<<grid, 16 * kAcross, 0, stream>>>(in, to);
}

// Launches the product with the kernel that suits the number of rows.
template <typename Dot, typename To>
int Multiply(const void* x, int64_t ldx, const void* packed, int64_t k, const To& to,
             cudaStream_t stream) {
  if (to.m == 0) return cudaSuccess;
  const int64_t panels = (to.n + kLanes - 1) / kLanes;  // For one of gate and up.
  const Operands in{static_cast<const uint32_t*>(x),      ldx / Dot::kParts,    to.m,
                    static_cast<const uint32_t*>(packed), panels * To::kPanels, k / Dot::kParts};
  // Large tiles read less, but there must be enough of them to keep most multiprocessors busy.
  constexpr int64_t kLargeTile = 128 * 128, kManyTiles = 96;
  if (to.m <= 2 * kFewRows) {
    const dim3 grid(static_cast<unsigned>(panels),
                    static_cast<unsigned>((to.m + kFewRows - 1) / kFewRows));
    RowProduct<Dot, To><<<grid, kThreads, 0, stream>>>(in, to);
  } else if (to.m * to.n * To::kPanels < kManyTiles * kLargeTile) {
    LaunchTiles<Dot, To, 4, To::kPanels, 8, 32>(in, to, stream);
  } else {
    LaunchTiles<Dot, To, 8, 4, 8, 8 * Dot::kParts>(in, to, stream);
  }
  return cudaGetLastError();
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
  return Multiply<F32Dot>(x, ldx, packed, k, Plain{m, n, y, ldy, add}, AsStream(stream));
}

int GemmBf16(const uint16_t* x, int64_t ldx, const uint16_t* packed, int64_t m, int64_t n,
             int64_t k, float* y, int64_t ldy, bool add, void* stream) {
  return Multiply<Bf16Dot>(x, ldx, packed, k, Plain{m, n, y, ldy, add}, AsStream(stream));
}

int GateUp(const float* x, int64_t ldx, const float* packed, int64_t m, int64_t n, int64_t k,
           float* y, int64_t ldy, void* stream) {
  return Multiply<F32Dot>(x, ldx, packed, k, Gated<float>{m, n, y, ldy}, AsStream(stream));
}

int GateUpBf16(const uint16_t* x, int64_t ldx, const uint16_t* packed, int64_t m, int64_t n,
               int64_t k, uint16_t* y, int64_t ldy, void* stream) {
  return Multiply<Bf16Dot>(x, ldx, packed, k, Gated<uint16_t>{m, n, y, ldy}, AsStream(stream));
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
