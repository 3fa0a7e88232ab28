#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/fingerprint/keys.h"
#include "kernels/fingerprint/op.h"

// The double sum of op.h is computed column by column:
//
//   F_l = sum over j of  R_l[j] (sum over b of  T_l(b) bits(1024 b + j))
//
// A thread owns a few neighbouring columns j and walks down the blocks b. T_l(b) is the same for
// all columns, and R_l[j] is needed only once, at the end. Therefore an element costs only one
// multiplication by 64 bits per lane l, and no sum over threads. Addition modulo 2^64 is exact in
// any order.
namespace sluice::kernels {
namespace {

constexpr int kThreads = 256;
// A tensor is cut into about this many thread blocks. Each thread then does this many loads: not
// fewer, because the last sum costs as much as some of them, and not more than there is room for
// keys.
constexpr int kThreadBlocks = 512;
constexpr int kLeastSteps = 8, kMostSteps = 128;
constexpr int64_t kBlock = kFingerprintBlock;

// The elements that a thread loads at once. Of 16 elements of 8 bits, the sums would need too many
// registers.
template <typename Word>
constexpr int kCount = sizeof(Word) == 1 ? 8 : 16 / sizeof(Word);
template <typename Word>
struct alignas(kCount<Word> * sizeof(Word)) Load {
  uint32_t words[kCount<Word> * sizeof(Word) / 4];
};

// In each step, a thread block reads this many blocks of 1024 elements.
template <typename Word>
constexpr int kRows = kThreads * kCount<Word> / kBlock;

// T_0 and T_1 of a block, in halves. With them, a product modulo 2^64 is two multiplications.
struct alignas(16) Keys {
  uint32_t low[2], high[2];
};

// Sums of one column for both lanes. The bits of `high` count 2^32 times as much as those of `low`.
struct Sums {
  uint64_t low[2];
  uint32_t high[2];
};

// Adds the elements of all steps to the sums of this thread's columns. `at` is the index of the
// thread's first element. Only indexes in [0, count) are elements; with kWhole, all of them are,
// and they are aligned.
template <bool kWhole, typename Word>
__device__ void AddSteps(const Word* elements, int64_t at, int64_t count, bool aligned, int steps,
                         const Keys* keys, Sums (&sums)[kCount<Word>]) {
  constexpr int kBits = 8 * sizeof(Word), kPerWord = 32 / kBits;
#pragma unroll 8
  for (int step = 0; step < steps; ++step, at += kThreads * kCount<Word>) {
    Load<Word> load = {};
    if (kWhole || (aligned && at >= 0 && at + kCount<Word> <= count)) {
      load = *reinterpret_cast<const Load<Word>*>(elements + at);
    } else {
      for (int i = 0; i < kCount<Word>; ++i) {
        if (at + i >= 0 && at + i < count)
          load.words[i / kPerWord] |= uint32_t{elements[at + i]} << (i % kPerWord * kBits);
      }
    }
    const Keys key = keys[step * kRows<Word>];
    for (int i = 0; i < kCount<Word>; ++i) {
      const uint32_t bits =
          load.words[i / kPerWord] >> (i % kPerWord * kBits) & static_cast<Word>(~Word{0});
      for (int lane = 0; lane < 2; ++lane) {
        sums[i].low[lane] += uint64_t{key.low[lane]} * bits;
        sums[i].high[lane] += key.high[lane] * bits;
      }
    }
  }
}

template <typename Word>
__global__ void __launch_bounds__(kThreads, 2)
    Fingerprint(uint64_t tid, const Word* elements, uint64_t first, int64_t count, int steps,
                unsigned long long* sum) {
  constexpr int kColumns = kBlock / kCount<Word>;  // Threads that read one block of elements.
  __shared__ Keys keys[kMostSteps * kRows<Word>];
  const int blocks = steps * kRows<Word>;  // Blocks of elements that all threads read.
  const int64_t skipped = int64_t{blockIdx.x} * blocks;
  for (int i = threadIdx.x; i < 2 * blocks; i += kThreads) {
    const uint64_t key = BlockKey(tid, i % 2, first / kBlock + skipped + i / 2);
    keys[i / 2].low[i % 2] = static_cast<uint32_t>(key);
    keys[i / 2].high[i % 2] = static_cast<uint32_t>(key >> 32);
  }
  __syncthreads();

  const int row = threadIdx.x / kColumns, j = threadIdx.x % kColumns * kCount<Word>;
  const int64_t begin = skipped * kBlock - static_cast<int64_t>(first % kBlock);
  const int64_t at = begin + row * kBlock + j;
  const bool aligned = reinterpret_cast<uintptr_t>(elements + begin) % sizeof(Load<Word>) == 0;
  Sums sums[kCount<Word>] = {};
  if (aligned && begin >= 0 && begin + blocks * kBlock <= count) {
    AddSteps<true>(elements, at, count, aligned, steps, keys + row, sums);
  } else {
    AddSteps<false>(elements, at, count, aligned, steps, keys + row, sums);
  }

  for (int lane = 0; lane < 2; ++lane) {
    unsigned long long value = 0;
    for (int i = 0; i < kCount<Word>; ++i) {
      const uint64_t column = sums[i].low[lane] + (uint64_t{sums[i].high[lane]} << 32);
      value += ElementKey(lane, j + i) * column;
    }
    for (int offset = 16; offset > 0; offset /= 2)
      value += __shfl_down_sync(0xffffffffu, value, offset);
    if (threadIdx.x % 32 == 0) atomicAdd(&sum[lane], value);
  }
}

template <typename Word>
void Launch(uint64_t tid, const void* elements, uint64_t first, uint64_t count, uint64_t* sum,
            cudaStream_t stream) {
  constexpr int64_t kElements = kRows<Word> * kBlock;  // Of a step.
  const int64_t all = (static_cast<int64_t>(first % kBlock + count) + kElements - 1) / kElements;
  const int64_t steps = std::clamp<int64_t>(all / kThreadBlocks, kLeastSteps, kMostSteps);
  Fingerprint<Word><<<static_cast<unsigned>((all + steps - 1) / steps), kThreads, 0, stream>>>(
      tid, static_cast<const Word*>(elements), first, static_cast<int64_t>(count),
      static_cast<int>(steps), reinterpret_cast<unsigned long long*>(sum));
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
