#include <cuda_runtime.h>

#include "kernels/fingerprint/keys.h"
#include "kernels/fingerprint/op.h"

namespace sluice::kernels {
namespace {

constexpr int kThreads = 128;

// One thread block per block of 1024 elements. Addition modulo 2^64 is exact in any order, so
// atomics do not change the result.
template <typename Word>
__global__ void Fingerprint(uint64_t tid, const Word* elements, uint64_t first, uint64_t count,
                            unsigned long long* sum) {
  const uint64_t block = first / kFingerprintBlock + blockIdx.x;
  const uint64_t begin = block * kFingerprintBlock;
  unsigned long long lanes[2] = {0, 0};
  for (uint64_t j = threadIdx.x; j < kFingerprintBlock; j += kThreads) {
    const uint64_t index = begin + j;
    if (index < first || index >= first + count) continue;
    const uint64_t bits = elements[index - first];
    lanes[0] += ElementKey(0, j) * bits;
    lanes[1] += ElementKey(1, j) * bits;
  }
  for (int lane = 0; lane < 2; ++lane) {
    unsigned long long value = lanes[lane];
    for (int offset = 16; offset > 0; offset /= 2)
      value += __shfl_down_sync(0xffffffffu, value, offset);
    if (threadIdx.x % 32 == 0) atomicAdd(&sum[lane], value * BlockKey(tid, lane, block));
  }
}

template <typename Word>
void Launch(uint64_t tid, const void* elements, uint64_t first, uint64_t count, uint64_t* sum,
            cudaStream_t stream) {
  const uint64_t blocks =
      (first + count + kFingerprintBlock - 1) / kFingerprintBlock - first / kFingerprintBlock;
  Fingerprint<Word><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      tid, static_cast<const Word*>(elements), first, count,
      reinterpret_cast<unsigned long long*>(sum));
}

}  // namespace

void AddFingerprintCuda(uint64_t tid, const void* elements, int width, uint64_t first,
                        uint64_t count, uint64_t* sum, void* stream) {
  if (count == 0) return;
  const auto s = static_cast<cudaStream_t>(stream);
  switch (width) {
    case 1: return Launch<uint8_t>(tid, elements, first, count, sum, s);
    case 2: return Launch<uint16_t>(tid, elements, first, count, sum, s);
    case 4: return Launch<uint32_t>(tid, elements, first, count, sum, s);
    default: __builtin_trap();
  }
}

}  // namespace sluice::kernels
