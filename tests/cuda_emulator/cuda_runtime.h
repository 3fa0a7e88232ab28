#pragma once

// CUDA's language and runtime library on the emulator, as far as the kernels of this tree and their
// checks use them. Code that needs more does not compile, or does not link: add it here.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/cuda_emulator/emulator.h"

// Lets code find out that it runs on the emulator.
#define CUDA_EMULATOR 1

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

inline constexpr int warpSize = 32;

// In the rewritten files, calls of these functions go to the emulator, which checks the memory that
// they touch.
extern "C" {
void* memcpy(void* to, const void* from, size_t bytes) noexcept __asm__("cuda_emulator_memcpy");
void* memmove(void* to, const void* from, size_t bytes) noexcept __asm__("cuda_emulator_memmove");
void* memset(void* to, int value, size_t bytes) noexcept __asm__("cuda_emulator_memset");
}

#define CUDA_EMULATOR_VECTORS(type, name, alignment2, alignment4)  \
  struct alignas(alignment2) name##2 { type x, y; };               \
  struct alignas(alignment4) name##4 { type x, y, z, w; };         \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
CUDA_EMULATOR_VECTORS(float, float, 8, 16)
CUDA_EMULATOR_VECTORS(int, int, 8, 16)
CUDA_EMULATOR_VECTORS(unsigned, uint, 8, 16)
#undef CUDA_EMULATOR_VECTORS

// ---- Arithmetic. Each operation is rounded once.

inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __uint_as_float(uint32_t x) { return __builtin_bit_cast(float, x); }
inline float __int_as_float(int32_t x) { return __builtin_bit_cast(float, x); }
inline uint32_t __float_as_uint(float x) { return __builtin_bit_cast(uint32_t, x); }
inline int32_t __float_as_int(float x) { return __builtin_bit_cast(int32_t, x); }
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __clz(uint32_t x) { return x == 0 ? 32 : __builtin_clz(x); }
inline int __ffs(uint32_t x) { return __builtin_ffs(static_cast<int>(x)); }
using std::max;
using std::min;
template <typename T>
T __ldg(const T* p) {
  return *p;
}

// ---- Barriers, votes, shuffles.

__forceinline__ void __syncthreads() {
  sluice::cuda_emulator::RunBlockCollective(sluice::cuda_emulator::Collective::kBarrier, 0);
}
__forceinline__ int __syncthreads_count(int x) {
  return sluice::cuda_emulator::RunBlockCollective(sluice::cuda_emulator::Collective::kBarrierCount,
                                                   x);
}
__forceinline__ int __syncthreads_and(int x) {
  return sluice::cuda_emulator::RunBlockCollective(sluice::cuda_emulator::Collective::kBarrierAnd,
                                                   x);
}
__forceinline__ int __syncthreads_or(int x) {
  return sluice::cuda_emulator::RunBlockCollective(sluice::cuda_emulator::Collective::kBarrierOr,
                                                   x);
}
__forceinline__ void __syncwarp(uint32_t mask = 0xffffffffu) {
  sluice::cuda_emulator::RunWarpCollective(sluice::cuda_emulator::Collective::kWarpBarrier, mask,
                                           0);
}
inline void __threadfence() { sluice::cuda_emulator::Fence(); }
// Within a block, only barriers order accesses for the emulator, so this does nothing.
inline void __threadfence_block() {}

#define CUDA_EMULATOR_SHUFFLE(name, what, argument_type)                                           \
  template <typename T>                                                                            \
  __forceinline__ T name(uint32_t mask, T value, argument_type argument, int width = 32) {         \
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);                              \
    uint64_t bits = 0;                                                                             \
    std::memcpy(&bits, &value, sizeof(T));                                                         \
    bits = sluice::cuda_emulator::RunWarpCollective(sluice::cuda_emulator::Collective::what, mask, \
                                                    bits, static_cast<int>(argument), width);      \
    std::memcpy(&value, &bits, sizeof(T));                                                         \
    return value;                                                                                  \
  }
CUDA_EMULATOR_SHUFFLE(__shfl_sync, kShuffle, int)
CUDA_EMULATOR_SHUFFLE(__shfl_up_sync, kShuffleUp, unsigned)
CUDA_EMULATOR_SHUFFLE(__shfl_down_sync, kShuffleDown, unsigned)
CUDA_EMULATOR_SHUFFLE(__shfl_xor_sync, kShuffleXor, int)
#undef CUDA_EMULATOR_SHUFFLE

#define CUDA_EMULATOR_WARP(result, name, what, type)                                   \
  __forceinline__ result name(uint32_t mask, type value) {                             \
    return static_cast<result>(sluice::cuda_emulator::RunWarpCollective(               \
        sluice::cuda_emulator::Collective::what, mask, static_cast<uint32_t>(value))); \
  }
CUDA_EMULATOR_WARP(uint32_t, __ballot_sync, kBallot, int)
CUDA_EMULATOR_WARP(int, __any_sync, kAny, int)
CUDA_EMULATOR_WARP(int, __all_sync, kAll, int)
CUDA_EMULATOR_WARP(uint32_t, __reduce_add_sync, kReduceAdd, uint32_t)
CUDA_EMULATOR_WARP(int32_t, __reduce_add_sync, kReduceAdd, int32_t)
CUDA_EMULATOR_WARP(uint32_t, __reduce_min_sync, kReduceMin, uint32_t)
CUDA_EMULATOR_WARP(int32_t, __reduce_min_sync, kReduceMinSigned, int32_t)
CUDA_EMULATOR_WARP(uint32_t, __reduce_max_sync, kReduceMax, uint32_t)
CUDA_EMULATOR_WARP(int32_t, __reduce_max_sync, kReduceMaxSigned, int32_t)
CUDA_EMULATOR_WARP(uint32_t, __reduce_and_sync, kReduceAnd, uint32_t)
CUDA_EMULATOR_WARP(uint32_t, __reduce_or_sync, kReduceOr, uint32_t)
CUDA_EMULATOR_WARP(uint32_t, __reduce_xor_sync, kReduceXor, uint32_t)
#undef CUDA_EMULATOR_WARP

// ---- Atomics. No other thread runs during one, so plain code is enough. The value has the type of
// the address, so that a literal converts. The accesses are not instrumented: BeforeAtomic() checks
// them.

#define CUDA_EMULATOR_ATOMIC(name, change)                                                 \
  template <typename T>                                                                    \
  __attribute__((no_sanitize("thread"), noinline)) T name(T* address,                      \
                                                          std::type_identity_t<T> value) { \
    sluice::cuda_emulator::BeforeAtomic(address, sizeof(T), __builtin_return_address(0));  \
    const T old = *address;                                                                \
    *address = change;                                                                     \
    return old;                                                                            \
  }
CUDA_EMULATOR_ATOMIC(atomicAdd, old + value)
CUDA_EMULATOR_ATOMIC(atomicSub, old - value)
CUDA_EMULATOR_ATOMIC(atomicExch, value)
CUDA_EMULATOR_ATOMIC(atomicMin, old < value ? old : value)
CUDA_EMULATOR_ATOMIC(atomicMax, old > value ? old : value)
CUDA_EMULATOR_ATOMIC(atomicAnd, old& value)
CUDA_EMULATOR_ATOMIC(atomicOr, old | value)
CUDA_EMULATOR_ATOMIC(atomicXor, old ^ value)
CUDA_EMULATOR_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
#undef CUDA_EMULATOR_ATOMIC
template <typename T>
__attribute__((no_sanitize("thread"), noinline)) T atomicCAS(T* address,
                                                             std::type_identity_t<T> expected,
                                                             std::type_identity_t<T> value) {
  sluice::cuda_emulator::BeforeAtomic(address, sizeof(T), __builtin_return_address(0));
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}

// ---- The runtime library. All work is done when a call returns, whatever the stream.

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault,
};
typedef struct CUevent_st* cudaEvent_t;
struct cudaDeviceProp {
  char name[256];
  int major, minor, multiProcessorCount;
};

cudaError_t cudaMalloc(void** address, size_t bytes);
template <typename T>
cudaError_t cudaMalloc(T** address, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(address), bytes);
}
cudaError_t cudaFree(void* address);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void* to, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream = nullptr);

cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to);
