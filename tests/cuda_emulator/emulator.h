#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <tuple>

// The part of the emulator that rewritten kernels call. README.md says what it finds and how.
//
// A fault ends the program with exit code kFaultExitCode, after a report on stderr that names the
// kernel, block, thread, address and source line. One thread of the host may use it.

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint3 {
  unsigned x, y, z;
};
typedef struct CUstream_st* cudaStream_t;

// Of the thread that runs. Not const: they change at every switch between threads.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace sluice::cuda_emulator {

inline constexpr int kFaultExitCode = 86;

// The order in which threads and blocks run: 0 is by number, any other is drawn from it. The
// environment's CUDA_EMULATOR_SEED, or 1, where this is not called.
void SetSeed(uint64_t seed);

// The names of the `__global__` functions of one file. The rewritten file makes one.
struct Kernels {
  Kernels(const char* file, std::initializer_list<const char*> names);
};
// Prints to stderr each kernel that no launch has run yet, and returns how many there are.
int PrintKernelsNeverRun();

// ---- Launches. `kernel` is its name as written, with template arguments.
struct Config {
  dim3 grid, block;
  size_t shared;
  Config(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t = nullptr)
      : grid(grid), block(block), shared(shared) {}
};
// Runs body(parameters) as every thread of every block, and returns when all have ended. A launch
// that a device would refuse is left to cudaGetLastError(). `parameters` is the one piece of host
// memory that the kernel may read.
void Run(const char* kernel, const Config& config, void (*body)(const void* parameters),
         const void* parameters, size_t parameter_bytes);

template <typename Body, typename... Args>
void Launch(const char* kernel, const Config& config, Body, const Args&... args) {
  using Parameters = std::tuple<Args...>;
  const Parameters parameters(args...);
  const auto body = [](const void* p) { std::apply(Body(), *static_cast<const Parameters*>(p)); };
  Run(kernel, config, body, &parameters, sizeof(parameters));
}

// ---- Shared memory. A `key` is the variable: all threads of a block that ask with it get the same
// place, unwritten at first.
void* SharedPlace(const void* key, const char* name, size_t bytes, size_t alignment);
void* DynamicSharedPlace();

template <typename T>
T& Shared(const void* key, const char* name) {
  return *static_cast<T*>(SharedPlace(key, name, sizeof(T), alignof(T)));
}

// ---- What threads do together.
enum class Together {
  kBarrier,
  kBarrierCount,
  kBarrierAnd,
  kBarrierOr,
  kWarpBarrier,
  kShuffle,
  kShuffleUp,
  kShuffleDown,
  kShuffleXor,
  kBallot,
  kAny,
  kAll,
  kReduceAdd,
  kReduceMin,
  kReduceMax,
  kReduceMinSigned,
  kReduceMaxSigned,
  kReduceAnd,
  kReduceOr,
  kReduceXor,
};
// By all threads of the block, each with its own `value`.
int BlockTogether(Together what, int value);
// By the lanes in `mask`. `argument` and `width` are those of a shuffle.
uint64_t WarpTogether(Together what, uint32_t mask, uint64_t value, int argument = 0,
                      int width = 32);

// Before an atomic operation on `bytes` bytes: checks the access, and lets other threads run. `at`
// is the operation's return address.
void BeforeAtomic(const void* address, size_t bytes, const void* at);
// __threadfence(): of two blocks that both call it, neither races with the other from then on.
void Fence();

// fma.rn.ftz.f32: denormals are zero, with their sign.
float FmaRnFtz(float a, float b, float c);

}  // namespace sluice::cuda_emulator
