// The runtime library that cuda_runtime.h declares.

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "tests/cuda_emulator/cuda_runtime.h"
#include "tests/cuda_emulator/memory.h"
#include "tests/cuda_emulator/report.h"
#include "tests/cuda_emulator/threads.h"

namespace emulator = sluice::cuda_emulator;

struct CUevent_st {
  std::chrono::steady_clock::time_point time;
};
struct CUstream_st {};

namespace {

cudaError_t Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, const void* at) {
  const bool to_device = kind == cudaMemcpyDefault
                             ? emulator::IsDeviceMemory(to)
                             : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDefault
                               ? emulator::IsDeviceMemory(from)
                               : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (from_device != emulator::IsDeviceMemory(from) || to_device != emulator::IsDeviceMemory(to))
    emulator::Fail(at, "cudaMemcpy in another direction than its kind says");
  if (from_device) emulator::CheckCopy(from, bytes, emulator::Access::kRead, at);
  if (to_device) emulator::CheckCopy(to, bytes, emulator::Access::kWrite, at);
  const emulator::MemoryOpen open;
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t SetBytes(void* to, int value, size_t bytes, const void* at) {
  emulator::CheckCopy(to, bytes, emulator::Access::kWrite, at);
  const emulator::MemoryOpen open;
  if (bytes > 0) std::memset(to, value, bytes);
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaMalloc(void** address, size_t bytes) {
  *address = emulator::AllocateDevice(bytes, __builtin_return_address(0));
  return *address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  if (address != nullptr) emulator::FreeDevice(address, __builtin_return_address(0));
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return Copy(to, from, bytes, kind, __builtin_return_address(0));
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  return Copy(to, from, bytes, kind, __builtin_return_address(0));
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return SetBytes(to, value, bytes, __builtin_return_address(0));
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  return SetBytes(to, value, bytes, __builtin_return_address(0));
}

cudaError_t cudaGetLastError() { return static_cast<cudaError_t>(emulator::GetLaunchError(true)); }
cudaError_t cudaPeekAtLastError() {
  return static_cast<cudaError_t>(emulator::GetLaunchError(false));
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
  }
  return "unknown error";
}

cudaError_t cudaDeviceSynchronize() { return cudaPeekAtLastError(); }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1;  // Of the one attribute that there is: multiprocessors.
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {.name = "emulator", .major = 8, .minor = 0, .multiProcessorCount = 1};
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new CUstream_st();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaPeekAtLastError(); }
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->time = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}
