#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "tests/cuda_emulator/emulator.h"

// The threads of the running block. They are fibers, of which one runs at a time.
namespace sluice::cuda_emulator {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kMostThreads = 1024;
inline constexpr size_t kStackBytes = 64 << 10;

struct Thread {
  enum class State { kReady, kAtBarrier, kAtWarp, kEnded };

  unsigned number = 0;  // x + y * blockDim.x + z * blockDim.x * blockDim.y
  State state = State::kReady;
  jmp_buf context;
  char* stack = nullptr;  // kStackBytes long; the page before it is the guard.

  // The operation that the thread waits in, its arguments, and its result.
  Collective what = Collective::kBarrier;
  uint32_t mask = 0;
  uint64_t value = 0;
  int argument = 0, width = 0;
  const void* at = nullptr;  // The return address, for reports.
  uint64_t result = 0;

  // A vector clock over the lanes of the warp, counted since the last barrier of the block. The
  // entry of a thread's own lane is its own clock. What lane l did while its own clock was at most
  // known[l] is ordered before what this thread does now. A __syncwarp() joins the clocks of its
  // lanes.
  uint32_t known[kWarp] = {};
};

// Whether `address` is in the guard page, into which the stack overflows.
bool IsGuard(const Thread& thread, const void* address);

extern Thread* current;  // nullptr while the host runs.
// Whether accesses are to be checked: false on the host, and while the emulator's own code runs.
// (That code may use the same templates of the standard library as the kernel. The linker keeps
// only one copy, that of the kernel, which calls the hooks.)
extern bool watching;
extern const char* running_kernel;  // nullptr between launches.
extern const void* parameters_begin;
extern const void* parameters_end;
extern uint64_t seed_in_use;

// The running block, and which of its threads can run.
struct Scheduler {
  std::vector<Thread> threads;  // kMostThreads; their stacks are kept from block to block.
  unsigned count = 0;           // Threads of the block.
  std::vector<Thread*> ready;
  unsigned at_barrier = 0, ended = 0;
  jmp_buf host;
  std::mt19937_64 random;

  void (*body)(const void*) = nullptr;
  std::map<const void*, void*> shared;  // Shared variables by their keys.
  size_t dynamic_shared = 0;
};
Scheduler& TheScheduler();

void MakeReady(Thread* thread);
// Switches from the running thread to the scheduler's loop, until the thread is resumed.
void SwitchToHost();
// Called after a thread has ended, because operations of its warp may have waited for it alone.
void RetryWarpCollectives(const Thread& ended);
// Called when no thread can run and not all have ended: reports what they wait for.
[[noreturn]] void FailStuck();

// Turns `watching` off while a call from a kernel's thread is in the emulator.
class Unwatched {
 public:
  Unwatched() { watching = false; }
  ~Unwatched() { watching = true; }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

// Returns the error of the last launch that a device would have refused, for cudaGetLastError(); 0
// if there is none. If `clear`, forgets it.
int GetLaunchError(bool clear);

}  // namespace sluice::cuda_emulator
