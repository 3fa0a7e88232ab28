#pragma once

#include <cstddef>
#include <cstdint>

// The memory of the emulated device, and what is known of each of its bytes: who wrote it last, who
// read it last, and when. Device and shared memory lie in one range of addresses that the host
// cannot touch, each allocation with a gap behind it. No address of device memory is used twice.
namespace sluice::cuda_emulator {

enum class Access { kRead, kWrite, kAtomic };

// `at` is the return address of the caller, for reports. nullptr: no room.
void* AllocateDevice(size_t bytes, const void* at);
void FreeDevice(void* begin, const void* at);
// A variable of the running block, unwritten. It lives until BeginBlock().
void* AllocateShared(const char* name, size_t bytes, size_t alignment);

// Checks an access by the running thread, and remembers it.
void CheckAccess(const void* address, size_t bytes, Access access, const void* at);
// An access of the runtime library for the host: within one allocation, and written where read.
void CheckCopy(const void* address, size_t bytes, Access access, const void* at);
bool IsDeviceMemory(const void* address);

// Time, as races see it. What precedes a launch or a barrier is ordered before what follows; two
// blocks of a launch are not ordered.
void BeginLaunch();
void BeginBlock();
void PassBarrier();
// The running block has called __threadfence().
void RememberFence();

// While one lives, code outside the kernels may touch the memory.
class MemoryOpen {
 public:
  MemoryOpen();
  ~MemoryOpen();
};

}  // namespace sluice::cuda_emulator
