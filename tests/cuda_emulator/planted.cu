#include "tests/cuda_emulator/planted.h"

#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace sluice::cuda_emulator {
namespace {

constexpr int kThreads = 64;

template <typename T>
T* Device(size_t count) {
  T* data = nullptr;
  cudaMalloc(&data, count * sizeof(T));
  return data;
}
template <typename T>
T* Zeros(size_t count) {
  T* const data = Device<T>(count);
  cudaMemset(data, 0, count * sizeof(T));
  return data;
}

// ---- Races.

__global__ void ReadBeforeBarrier(bool faulty, int* out) {
  __shared__ int cells[kThreads];
  cells[threadIdx.x] = 0;
  __syncthreads();
  cells[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (!faulty) __syncthreads();
  out[threadIdx.x] = cells[(threadIdx.x + 1) % kThreads];
}
void MissingBarrier(bool faulty) {
  ReadBeforeBarrier<<<1, kThreads>>>(faulty, Device<int>(kThreads));
}

// Without the second barrier a fast thread overwrites what a slow one has yet to read.
__global__ void ShiftTwice(bool faulty, int* out) {
  __shared__ int cells[kThreads];
  cells[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  const int next = cells[(threadIdx.x + 1) % kThreads];
  if (!faulty) __syncthreads();
  cells[threadIdx.x] = next;
  out[threadIdx.x] = next;
}
void WriteAfterRead(bool faulty) { ShiftTwice<<<1, kThreads>>>(faulty, Device<int>(kThreads)); }

__global__ void CountEvens(bool faulty, int* out) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  if (faulty) {
    count += threadIdx.x % 2 == 0;
  } else {
    atomicAdd(&count, threadIdx.x % 2 == 0);
  }

  __syncthreads();
  if (threadIdx.x == 0) *out = count;
}
void PlainInsteadOfAtomic(bool faulty) { CountEvens<<<1, kThreads>>>(faulty, Device<int>(1)); }

__global__ void ReadAtomics(bool faulty, int* out) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 1);
  if (!faulty) __syncthreads();
  out[threadIdx.x] = count;
}
void ReadOfAtomicsTooEarly(bool faulty) {
  ReadAtomics<<<1, kThreads>>>(faulty, Device<int>(kThreads));
}

// In one warp, __syncwarp() is enough to order the accesses of its lanes.
__global__ void WarpExchange(bool faulty, int* out) {
  __shared__ int cells[32];
  cells[threadIdx.x] = 0;
  __syncthreads();
  cells[threadIdx.x] = static_cast<int>(threadIdx.x);

  if (faulty) {
    __shfl_sync(0xffffffffu, 1, 0);  // A shuffle orders no accesses to memory.
  } else {
    __syncwarp();
  }
  out[threadIdx.x] = cells[threadIdx.x ^ 1];
}
void MissingSyncwarp(bool faulty) { WarpExchange<<<1, 32>>>(faulty, Device<int>(32)); }

// __syncwarp() orders only the lanes of its mask, and no other warp.
__global__ void HalfWarps(bool faulty, int* out) {
  __shared__ int cells[32];
  const unsigned half = threadIdx.x / 16;
  cells[threadIdx.x] = 0;
  __syncthreads();
  cells[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncwarp(half == 0 ? 0x0000ffffu : 0xffff0000u);
  out[threadIdx.x] = cells[threadIdx.x ^ (faulty ? 16u : 8u)];
}
void SyncwarpOfOtherLanes(bool faulty) { HalfWarps<<<1, 32>>>(faulty, Device<int>(32)); }

__global__ void WriteOnePlace(bool faulty, int* out) {
  if (faulty || blockIdx.x == 0) *out = static_cast<int>(blockIdx.x);
}
void TwoBlocksWriteOnePlace(bool faulty) { WriteOnePlace<<<2, 1>>>(faulty, Device<int>(1)); }

// The last block to arrive reads what the others wrote. The fences make that correct.
__global__ void LastBlockSums(bool faulty, int* parts, unsigned* arrived, int* out) {
  parts[blockIdx.x] = static_cast<int>(blockIdx.x);
  if (!faulty) __threadfence();
  if (atomicAdd(arrived, 1u) + 1 < gridDim.x) return;
  if (!faulty) __threadfence();
  *out = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) *out += parts[i];
}
void MissingFence(bool faulty) {
  LastBlockSums<<<4, 1>>>(faulty, Zeros<int>(4), Zeros<unsigned>(1), Device<int>(1));
}

// ---- Addresses.

__global__ void Fill(int count, float* out) {
  if (static_cast<int>(threadIdx.x) < count) out[threadIdx.x] = 1;
}
void DeviceOverrun(bool faulty) { Fill<<<1, kThreads>>>(faulty ? 51 : 50, Device<float>(50)); }
void DeviceUnderrun(bool faulty) { Fill<<<1, 1>>>(1, Device<float>(50) - (faulty ? 1 : 0)); }

__global__ void FillShared(int count, int* out) {
  __shared__ int first[16], second[16];
  if (threadIdx.x < 16) first[threadIdx.x] = second[threadIdx.x] = 1;
  __syncthreads();
  int* const place = first;
  if (static_cast<int>(threadIdx.x) < count) place[threadIdx.x] = 2;
  out[threadIdx.x] = second[threadIdx.x % 16];
}
void SharedOverrun(bool faulty) { FillShared<<<1, 32>>>(faulty ? 17 : 16, Device<int>(32)); }

__global__ void Reverse(const int* in, int* out) {
  extern __shared__ int all[];
  all[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = all[blockDim.x - 1 - threadIdx.x];
}
void DynamicSharedOverrun(bool faulty) {
  const size_t bytes = kThreads * sizeof(int);
  Reverse<<<1, kThreads, bytes - (faulty ? 4 : 0), nullptr>>>(Zeros<int>(kThreads),
                                                              Device<int>(kThreads));
}

__global__ void Copy4(const int* from, int* to, int count) {
  memcpy(to, from, static_cast<size_t>(count) * sizeof(int));
}
void MemcpyOverrun(bool faulty) { Copy4<<<1, 1>>>(Zeros<int>(8), Device<int>(4), faulty ? 5 : 4); }

__global__ void CopyFour(const float* from, float4* to) {
  *to = *reinterpret_cast<const float4*>(from);
}
void Misaligned(bool faulty) {
  CopyFour<<<1, 1>>>(Zeros<float>(8) + (faulty ? 2 : 4), Device<float4>(1));
}

__global__ void ReadLocal(int place, int* out) {
  int local[4] = {};
  for (int i = 0; i < 4; ++i) local[i] = out[i];
  out[0] = local[place];
}
void LocalArrayOverrun(bool faulty) { ReadLocal<<<1, 1>>>(faulty ? 4 : 3, Zeros<int>(4)); }

void FreedMemory(bool faulty) {
  float* const data = Device<float>(50);
  if (faulty) cudaFree(data);
  Fill<<<1, kThreads>>>(50, data);
}
void SecondFree(bool faulty) {
  float* const data = Device<float>(50);
  cudaFree(data);
  if (faulty) cudaFree(data);
}
void HostPointerInKernel(bool faulty) {
  static std::vector<float> host(50);
  Fill<<<1, kThreads>>>(50, faulty ? host.data() : Device<float>(50));
}
void HostReadsDevice(bool faulty) {
  float* const data = Zeros<float>(50);
  float host = 0;
  if (faulty) {
    host = *static_cast<volatile float*>(data);
  } else {
    cudaMemcpy(&host, data, sizeof(host), cudaMemcpyDeviceToHost);
  }
}
void WrongDirection(bool faulty) {
  float host = 0;
  cudaMemcpy(&host, Zeros<float>(1), sizeof(host),
             faulty ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost);
}

__global__ void PassLocal(bool faulty, int* out) {
  __shared__ int* place;
  int mine = static_cast<int>(threadIdx.x);
  if (threadIdx.x == 0) place = &mine;
  __syncthreads();
  out[threadIdx.x] = faulty ? *place : mine;
  __syncthreads();
}
void LocalOfAnotherThread(bool faulty) { PassLocal<<<1, 2>>>(faulty, Device<int>(2)); }

__device__ int Deep(volatile int* below, int depth) {
  volatile int room[256];
  room[0] = *below;
  return depth == 0 ? room[0] : Deep(room, depth - 1) + room[0];
}
__global__ void Recurse(int depth, int* out) {
  int start = 1;
  *out = Deep(&start, depth);
}
void StackOverflow(bool faulty) { Recurse<<<1, 1>>>(faulty ? 1000 : 10, Device<int>(1)); }

// ---- Memory that nobody wrote.

__global__ void Double(const float* in, float* out) { out[threadIdx.x] = 2 * in[threadIdx.x]; }
void UnwrittenDevice(bool faulty) {
  float* const in = Device<float>(kThreads);
  cudaMemset(in, 0, (kThreads - (faulty ? 1 : 0)) * sizeof(float));
  Double<<<1, kThreads>>>(in, Device<float>(kThreads));
}

__global__ void SumShared(bool faulty, int* out) {
  __shared__ int cells[kThreads];
  if (threadIdx.x > 0 || !faulty) cells[threadIdx.x] = 1;
  __syncthreads();
  int sum = 0;
  for (int cell : cells) sum += cell;
  out[threadIdx.x] = sum;
}
void UnwrittenShared(bool faulty) { SumShared<<<1, kThreads>>>(faulty, Device<int>(kThreads)); }

// A block must not rely on what the block before left in shared memory.
__global__ void Inherit(bool faulty, int* out) {
  __shared__ int cell;
  if (blockIdx.x == 0 || !faulty) cell = 1;
  out[blockIdx.x] = cell;
}
void SharedOfTheBlockBefore(bool faulty) { Inherit<<<2, 1>>>(faulty, Device<int>(2)); }

void UnwrittenCopiedBack(bool faulty) {
  float* const data = Device<float>(50);
  Fill<<<1, kThreads>>>(faulty ? 49 : 50, data);
  std::vector<float> host(50);
  cudaMemcpy(host.data(), data, host.size() * sizeof(float), cudaMemcpyDeviceToHost);
}

// ---- Barriers and warp operations that not all reach.

__global__ void HalfWaits(bool faulty, int* out) {
  if (!faulty || threadIdx.x < 40) __syncthreads();
  out[threadIdx.x] = 1;
}
void DivergentBarrier(bool faulty) { HalfWaits<<<1, kThreads>>>(faulty, Device<int>(kThreads)); }

__global__ void TwoBarriers(bool faulty, int* out) {
  if (faulty && threadIdx.x < 32) {
    out[threadIdx.x] = 0;
    __syncthreads();
  } else {
    out[threadIdx.x] = 1;
    __syncthreads();
  }
}
void DifferentBarriers(bool faulty) { TwoBarriers<<<1, kThreads>>>(faulty, Device<int>(kThreads)); }

__global__ void PartialShuffle(bool faulty, int* out) {
  out[threadIdx.x] = 0;
  if (threadIdx.x < 16)
    out[threadIdx.x] = __shfl_xor_sync(faulty ? 0xffffffffu : 0x0000ffffu, threadIdx.x, 1);
  __syncthreads();
}
void DivergentShuffle(bool faulty) { PartialShuffle<<<1, 32>>>(faulty, Device<int>(32)); }

__global__ void VoteOfOthers(bool faulty, int* out) {
  out[threadIdx.x] = static_cast<int>(__ballot_sync(faulty ? 0xfffffffeu : 0xffffffffu, 1));
}
void MaskWithoutItself(bool faulty) { VoteOfOthers<<<1, 32>>>(faulty, Device<int>(32)); }

__global__ void ShuffleFrom(int lane, int* out) {
  out[threadIdx.x] = 0;
  if (threadIdx.x < 8) out[threadIdx.x] = __shfl_sync(0x000000ffu, threadIdx.x, lane);
}
void ShuffleFromAnAbsentLane(bool faulty) {
  ShuffleFrom<<<1, 32>>>(faulty ? 9 : 7, Device<int>(32));
}

// ---- Correct kernels, whose results are compared with plain loops.

__global__ void SumParts(const int32_t* x, int64_t part, unsigned long long* sums) {
  extern __shared__ unsigned long long cells[];
  unsigned long long mine = 0;
  for (int64_t i = threadIdx.x; i < part; i += blockDim.x)
    mine += static_cast<unsigned long long>(int64_t{x[blockIdx.x * part + i]});
  cells[threadIdx.x] = mine;

  for (unsigned width = blockDim.x / 2; width >= 32; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) cells[threadIdx.x] += cells[threadIdx.x + width];
  }

  __syncthreads();
  if (threadIdx.x >= 32) return;
  mine = cells[threadIdx.x];
  for (int offset = 16; offset > 0; offset /= 2)
    mine += __shfl_down_sync(0xffffffffu, mine, offset);
  if (threadIdx.x == 0) atomicAdd(&sums[blockIdx.x], mine);
}

__global__ void Ranks(const int32_t* x, int* ranks) {
  const int32_t mine = x[blockIdx.x * blockDim.x + threadIdx.x];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int rank = 0;
  for (unsigned i = 0; i < blockDim.x; ++i) {
    const int32_t other = x[blockIdx.x * blockDim.x + i];
    // All threads look at one number at a time. Each thread whose own number comes after it counts
    // it.
    const uint32_t after =
        __ballot_sync(0xffffffffu, other < mine || (other == mine && i < threadIdx.x));
    rank += static_cast<int>(after >> lane & 1);
    // The count is never negative. It is asked only to test it between the votes of the warps.
    if (__syncthreads_count(other < mine || (other == mine && i < threadIdx.x)) < 0) rank = -1;
  }

  // An inclusive scan over the warp, and the difference of neighbours, give back each rank.
  int sum = rank;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int below = __shfl_up_sync(0xffffffffu, sum, offset);
    if (static_cast<int>(lane) >= offset) sum += below;
  }

  const int before = __shfl_up_sync(0xffffffffu, sum, 1);
  ranks[blockIdx.x * blockDim.x + warp * 32 + lane] = lane == 0 ? sum : sum - before;
}

}  // namespace

std::vector<int64_t> SumsOfParts(const std::vector<int32_t>& x, int blocks, int threads) {
  int32_t* const in = Device<int32_t>(x.size());
  unsigned long long* const sums = Zeros<unsigned long long>(blocks);
  cudaMemcpy(in, x.data(), x.size() * sizeof(int32_t), cudaMemcpyHostToDevice);
  SumParts<<<blocks, threads, threads * sizeof(unsigned long long)>>>(
      in, static_cast<int64_t>(x.size()) / blocks, sums);
  std::vector<int64_t> back(blocks);
  cudaMemcpy(back.data(), sums, back.size() * sizeof(int64_t), cudaMemcpyDeviceToHost);
  cudaFree(in);
  cudaFree(sums);

  return back;
}

std::vector<int> RanksInBlocks(const std::vector<int32_t>& x, int threads) {
  int32_t* const in = Device<int32_t>(x.size());
  int* const ranks = Device<int>(x.size());
  cudaMemcpy(in, x.data(), x.size() * sizeof(int32_t), cudaMemcpyHostToDevice);
  Ranks<<<static_cast<unsigned>(x.size()) / threads, threads>>>(in, ranks);
  std::vector<int> back(x.size());
  cudaMemcpy(back.data(), ranks, back.size() * sizeof(int), cudaMemcpyDeviceToHost);
  cudaFree(in);
  cudaFree(ranks);

  return back;
}

int ErrorOfLaunch(unsigned blocks, unsigned threads) {
  float* const data = Device<float>(50);
  Fill<<<blocks, threads>>>(blocks == 1 ? 50 : 0, data);
  cudaFree(data);
  return cudaGetLastError();
}

std::vector<Planted> AllPlanted() {
  return {
      {"MissingBarrier", MissingBarrier, "race on shared memory"},
      {"WriteAfterRead", WriteAfterRead, "race on shared memory(.|\n)*with no barrier since"},
      {"PlainInsteadOfAtomic", PlainInsteadOfAtomic, "race on shared memory"},
      {"ReadOfAtomicsTooEarly", ReadOfAtomicsTooEarly,
       "race on shared memory(.|\n)*shared count .4 bytes"},
      {"MissingSyncwarp", MissingSyncwarp, "race on shared memory"},
      {"SyncwarpOfOtherLanes", SyncwarpOfOtherLanes, "race on shared memory"},
      {"TwoBlocksWriteOnePlace", TwoBlocksWriteOnePlace,
       "race on device memory(.|\n)*in another block of the launch"},
      {"MissingFence", MissingFence, "race on device memory"},
      {"DeviceOverrun", DeviceOverrun,
       "overrun of device memory\n  it writes 4 bytes at offset 200 of device allocation"},
      {"DeviceUnderrun", DeviceUnderrun, "overrun of device memory\n  it writes 4 bytes at offset"},
      {"SharedOverrun", SharedOverrun,
       "overrun of shared memory\n  it writes 4 bytes at offset 64 of shared first .64 bytes"},
      {"DynamicSharedOverrun", DynamicSharedOverrun,
       "overrun of shared memory\n.*offset 252 of shared .dynamic"},
      {"MemcpyOverrun", MemcpyOverrun, "overrun of device memory\n  it writes 20 bytes"},
      {"Misaligned", Misaligned, "misaligned address"},
      {"LocalArrayOverrun", LocalArrayOverrun, "out of bounds"},
      {"FreedMemory", FreedMemory, "use of freed memory(.|\n)*freed at .*planted.cu:[0-9]+"},
      {"SecondFree", SecondFree, "second cudaFree of device allocation"},
      {"HostPointerInKernel", HostPointerInKernel, "touches memory of the host"},
      {"HostReadsDevice", HostReadsDevice, "host code touches device memory(.|\n)*planted.cu"},
      {"WrongDirection", WrongDirection, "another direction than its kind says"},
      {"LocalOfAnotherThread", LocalOfAnotherThread, "touches memory of the host, or of another"},
      {"StackOverflow", StackOverflow, "the thread's stack is full"},
      {"UnwrittenDevice", UnwrittenDevice,
       "read of device memory that nobody wrote\n  it reads 4 bytes at offset 252"},
      {"UnwrittenShared", UnwrittenShared, "read of shared memory that nobody wrote"},
      {"SharedOfTheBlockBefore", SharedOfTheBlockBefore, "read of shared memory that nobody wrote"},
      {"UnwrittenCopiedBack", UnwrittenCopiedBack, "read of device memory that nobody wrote"},
      {"DivergentBarrier", DivergentBarrier,
       "a barrier that not all threads of the block reach\n(.|\n)*threads 40-63 ended"},
      {"DifferentBarriers", DifferentBarriers, "the threads of a block are at different barriers"},
      {"DivergentShuffle", DivergentShuffle,
       "a warp operation that not all lanes of its mask reach"},
      {"MaskWithoutItself", MaskWithoutItself, "by a lane that its mask leaves out"},
      {"ShuffleFromAnAbsentLane", ShuffleFromAnAbsentLane, "reads lane 9, which takes no part"},
  };
}

}  // namespace sluice::cuda_emulator
