#include <algorithm>
#include <cstring>

#include "kernels/fingerprint/keys.h"
#include "kernels/fingerprint/op.h"

namespace sluice::kernels {
namespace {

// Computes the sum of R_l[j] bits(j) over `count` elements of one block, from position j0 in the
// block on.
template <typename Word>
#if defined(__x86_64__) && !defined(SLUICE_SANITIZED) && \
    !defined(__clang__)  // Clang cannot clone templates.
// The clone is chosen by the features of the CPU. (arch=skylake-avx512 would also ask for its
// vendor.)
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
void BlockSums(const ElementKeys& keys, const char* elements, uint64_t j0, uint64_t count,
               uint64_t sums[2]) {
  uint64_t s0 = 0, s1 = 0;
  const uint64_t* const r0 = keys.r[0].data() + j0;
  const uint64_t* const r1 = keys.r[1].data() + j0;
  for (uint64_t j = 0; j < count; ++j) {
    Word bits;
    std::memcpy(&bits, elements + j * sizeof(Word), sizeof(Word));
    s0 += r0[j] * bits;
    s1 += r1[j] * bits;
  }
  sums[0] = s0;
  sums[1] = s1;
}

template <typename Word>
void AddAll(uint64_t tid, const char* elements, uint64_t first, uint64_t count, uint64_t sum[2]) {
  const ElementKeys& keys = ElementKeys::Get();
  for (uint64_t done = 0; done < count;) {
    const uint64_t index = first + done;
    const uint64_t j0 = index % kFingerprintBlock;
    const uint64_t n = std::min(count - done, kFingerprintBlock - j0);
    uint64_t block[2];
    BlockSums<Word>(keys, elements + done * sizeof(Word), j0, n, block);
    for (int lane = 0; lane < 2; ++lane)
      sum[lane] += BlockKey(tid, lane, index / kFingerprintBlock) * block[lane];
    done += n;
  }
}

}  // namespace

void AddFingerprint(uint64_t tid, const void* elements, int width, uint64_t first, uint64_t count,
                    uint64_t sum[2]) {
  const char* const bytes = static_cast<const char*>(elements);
  switch (width) {
    case 1: return AddAll<uint8_t>(tid, bytes, first, count, sum);
    case 2: return AddAll<uint16_t>(tid, bytes, first, count, sum);
    case 4: return AddAll<uint32_t>(tid, bytes, first, count, sum);
    default: __builtin_trap();  // Callers only have dtypes of these widths.
  }
}

}  // namespace sluice::kernels
