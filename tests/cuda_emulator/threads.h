#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "tests/cuda_emulator/emulator.h"

// The threads of the block that runs: fibers, one of which runs at a time.
namespace sluice::cuda_emulator {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kMostThreads = 1024;
inline constexpr size_t kStackBytes = 64 << 10;

struct Thread {
  enum class State { kReady, kAtBarrier, kAtWarp, kEnded };

  unsigned number = 0;  // x + y * blockDim.x + z * blockDim.x * blockDim.y
  State state = State::kReady;
  jmp_buf context;
  char* stack = nullptr;  // kStackBytes; the page before it is the guard.

  // What it waits for, and what comes of it.
  Together what = Together::kBarrier;
  uint32_t mask = 0;
  uint64_t value = 0;
  int argument = 0, width = 0;
  const void* at = nullptr;  // Return address.
  uint64_t result = 0;

  // A vector clock over the lanes of its warp, since the last barrier of the block: it has seen
  // what lane l did before l's own clock was known[l]. A __syncwarp() joins those of its lanes.
  uint32_t known[kWarp] = {};
};

// True for an address in the page that a stack overflows into.
bool IsGuard(const Thread& thread, const void* address);

extern Thread* current;  // nullptr while the host runs.
// Whether accesses are the kernel's: false on the host, and while a call of the emulator runs. (Its
// templates of the standard library may be the kernel's, so with hooks: the linker keeps one.)
extern bool watching;
extern const char* running_kernel;  // nullptr between launches.
extern const void* parameters_begin;
extern const void* parameters_end;
extern uint64_t seed_in_use;

// The block that runs.
struct Scheduler {
  std::vector<Thread> threads;  // kMostThreads, whose stacks are kept from block to block.
  unsigned count = 0;           // Of the block.
  std::vector<Thread*> ready;
  unsigned at_barrier = 0, ended = 0;
  jmp_buf host;
  std::mt19937_64 random;

  void (*body)(const void*) = nullptr;
  std::map<const void*, void*> shared;  // By variable.
  size_t dynamic_shared = 0;
};
Scheduler& TheScheduler();

void MakeReady(Thread* thread);
// From the running thread to the scheduler's loop, until it is resumed.
void SwitchToHost();
// After a thread has ended: warp operations of its warp may have waited for it alone.
void RetryWarp(const Thread& ended);
// When no thread can run and not all have ended: says what they wait for.
[[noreturn]] void FailStuck();

// Lives while a call of a kernel's thread is in the emulator.
class Unwatched {
 public:
  Unwatched() { watching = false; }
  ~Unwatched() { watching = true; }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

// For cudaGetLastError(): the launches that a device refuses.
int TakeLaunchError(bool forget);

}  // namespace sluice::cuda_emulator
