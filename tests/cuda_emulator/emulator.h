#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <tuple>

// The part of the emulator that rewritten kernels call. README.md says what it finds and how.
//
// A fault prints a report to stderr, which names the kernel, block, thread, address and source
// line, and ends the program with exit code kFaultExitCode. Only one thread of the host may use it.

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint3 {
  unsigned x, y, z;
};
typedef struct CUstream_st* cudaStream_t;

// The indexes of the running thread. They are not const, because they change at every switch
// between threads.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace sluice::cuda_emulator {

inline constexpr int kFaultExitCode = 86;

// Sets the order in which threads and blocks run: 0 is by number, and any other seed draws an
// order. Without a call the seed is CUDA_EMULATOR_SEED of the environment, or 1.
void SetSeed(uint64_t seed);

// Registers the names of the `__global__` functions of a file. Each rewritten file makes one
// object.
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
// that a device would refuse runs nothing, and cudaGetLastError() returns its error. Of the host's
// heap and stack, the kernel may read only `parameters`.
void Run(const char* kernel, const Config& config, void (*body)(const void* parameters),
         const void* parameters, size_t parameter_bytes);

template <typename Body, typename... Args>
void Launch(const char* kernel, const Config& config, Body, const Args&... args) {
  using Parameters = std::tuple<Args...>;
  const Parameters parameters(args...);
  const auto body = [](const void* p) { std::apply(Body(), *static_cast<const Parameters*>(p)); };
  Run(kernel, config, body, &parameters, sizeof(parameters));
}

// ---- Shared memory. `key` identifies the variable: all threads of a block that ask with the same
// key get the same place, which is unwritten at first.
void* SharedPlace(const void* key, const char* name, size_t bytes, size_t alignment);
void* DynamicSharedPlace();

template <typename T>
T& Shared(const void* key, const char* name) {
  return *static_cast<T*>(SharedPlace(key, name, sizeof(T), alignof(T)));
}

// ---- Barriers, votes and shuffles of the threads of a block or a warp.
enum class Collective {
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
// Called by all threads of the block, each with its own `value`.
int RunBlockCollective(Collective what, int value);
// Called by the lanes in `mask`. `argument` and `width` are those of a shuffle.
uint64_t RunWarpCollective(Collective what, uint32_t mask, uint64_t value, int argument = 0,
                           int width = 32);

// Called before an atomic operation on `bytes` bytes: lets other threads run, then checks the
// access. `at` is the return address of the operation, for reports.
void BeforeAtomic(const void* address, size_t bytes, const void* at);
// __threadfence(). Once two blocks have both called it, their accesses no longer count as races.
void Fence();

// The PTX instruction fma.rn.ftz.f32: denormals become zero and keep their sign.
float FmaRnFtz(float a, float b, float c);

}  // namespace sluice::cuda_emulator
