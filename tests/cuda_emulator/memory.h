#pragma once

#include <cstddef>
#include <cstdint>

// The memory of the emulated device, and for each of its bytes who wrote it last, who read it last,
// and when. Device and shared memory lie in one range of addresses that the host cannot touch. Each
// allocation has a gap behind it, and no address of device memory is used twice.
namespace sluice::cuda_emulator {

enum class Access { kRead, kWrite, kAtomic };

// Allocates device memory; nullptr if there is no room. `at` is the return address of the caller,
// for reports.
void* AllocateDevice(size_t bytes, const void* at);
void FreeDevice(void* begin, const void* at);
// Allocates a variable of the running block, which is unwritten. It lives until BeginBlock().
void* AllocateShared(const char* name, size_t bytes, size_t alignment);

// Checks an access by the running thread, and remembers it. Ends the program if it is a fault.
void CheckAccess(const void* address, size_t bytes, Access access, const void* at);
// Checks an access of the runtime library for the host: it must lie within one allocation, and what
// it reads must have been written.
void CheckCopy(const void* address, size_t bytes, Access access, const void* at);
bool IsDeviceMemory(const void* address);

// Tell the race check how time passes. What precedes a launch or a barrier is ordered before what
// follows it. Two blocks of one launch are not ordered.
void BeginLaunch();
void BeginBlock();
void PassBarrier();
// Notes that the running block has called __threadfence().
void RememberFence();

// As long as an object lives, code outside the kernels may touch the memory.
class MemoryOpen {
 public:
  MemoryOpen();
  ~MemoryOpen();
};

}  // namespace sluice::cuda_emulator
