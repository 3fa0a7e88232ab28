// The calls that -fsanitize=thread puts before every access to memory. The program is not linked
// with ThreadSanitizer, so the linker finds only these. They do nothing between launches, because
// the host cannot touch the device's memory anyway.

#include <cstddef>
#include <cstring>

#include "tests/cuda_emulator/memory.h"
#include "tests/cuda_emulator/threads.h"

using sluice::cuda_emulator::Access;
using sluice::cuda_emulator::CheckAccess;
using sluice::cuda_emulator::Unwatched;
using sluice::cuda_emulator::watching;

namespace {

inline void Check(const void* address, size_t bytes, Access access, const void* at) {
  if (!watching || bytes == 0) return;
  const Unwatched unwatched;
  CheckAccess(address, bytes, access, at);
}

}  // namespace

extern "C" {

void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define CUDA_EMULATOR_HOOK(bytes)                                 \
  void __tsan_read##bytes(const void* p) {                        \
    Check(p, bytes, Access::kRead, __builtin_return_address(0));  \
  }                                                               \
  void __tsan_write##bytes(const void* p) {                       \
    Check(p, bytes, Access::kWrite, __builtin_return_address(0)); \
  }                                                               \
  void __tsan_unaligned_read##bytes(const void* p) {              \
    Check(p, bytes, Access::kRead, __builtin_return_address(0));  \
  }                                                               \
  void __tsan_unaligned_write##bytes(const void* p) {             \
    Check(p, bytes, Access::kWrite, __builtin_return_address(0)); \
  }
CUDA_EMULATOR_HOOK(1)
CUDA_EMULATOR_HOOK(2)
CUDA_EMULATOR_HOOK(4)
CUDA_EMULATOR_HOOK(8)
CUDA_EMULATOR_HOOK(16)
#undef CUDA_EMULATOR_HOOK

void __tsan_read_range(const void* p, size_t bytes) {
  Check(p, bytes, Access::kRead, __builtin_return_address(0));
}
void __tsan_write_range(const void* p, size_t bytes) {
  Check(p, bytes, Access::kWrite, __builtin_return_address(0));
}

// cuda_runtime.h sends calls of these C library functions here.
void* cuda_emulator_memcpy(void* to, const void* from, size_t bytes) {
  Check(from, bytes, Access::kRead, __builtin_return_address(0));
  Check(to, bytes, Access::kWrite, __builtin_return_address(0));
  return std::memcpy(to, from, bytes);
}
void* cuda_emulator_memmove(void* to, const void* from, size_t bytes) {
  Check(from, bytes, Access::kRead, __builtin_return_address(0));
  Check(to, bytes, Access::kWrite, __builtin_return_address(0));
  return std::memmove(to, from, bytes);
}
void* cuda_emulator_memset(void* to, int value, size_t bytes) {
  Check(to, bytes, Access::kWrite, __builtin_return_address(0));
  return std::memset(to, value, bytes);
}

}  // extern "C"
