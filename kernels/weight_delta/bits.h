#pragma once

#include <cstdint>

#include "kernels/fingerprint/keys.h"
#include "kernels/weight_delta/op.h"

// The arithmetic of op.h, for host and device code. Word is uint8_t, uint16_t or uint32_t.
namespace sluice::kernels {

template <typename Word>
inline constexpr int kWordBits = 8 * sizeof(Word);
template <typename Word>
inline constexpr Word kTopBit = static_cast<Word>(Word{1} << (kWordBits<Word> - 1));

template <typename Word>
SLUICE_HOST_DEVICE constexpr Word ToOrd(Word x) {
  return static_cast<Word>(x & kTopBit<Word> ? ~x : x ^ kTopBit<Word>);
}
template <typename Word>
SLUICE_HOST_DEVICE constexpr Word FromOrd(Word ord) {
  return static_cast<Word>(ord & kTopBit<Word> ? ord ^ kTopBit<Word> : ~ord);
}
template <typename Word>
SLUICE_HOST_DEVICE constexpr Word Difference(Word now, Word old) {
  return static_cast<Word>(ToOrd(now) - ToOrd(old));
}

// The codes of a SPARSE tile.
inline constexpr uint32_t kPlusOne = 0, kMinusOne = 1, kHalfWord = 2, kWholeWord = 3;

// d is not 0. The signs of changes are random, so a branch on them would often be mispredicted.
template <typename Word>
SLUICE_HOST_DEVICE constexpr uint32_t SparseCode(Word d) {
  if ((static_cast<Word>(d + 1) & ~2u) == 0) return d >> (kWordBits<Word> - 1);  // +1 or -1.
  // d is in [-h, h) with h = 2^(W/2 - 1).
  constexpr Word kHalf = static_cast<Word>(Word{1} << (kWordBits<Word> / 2 - 1));
  const bool fits = sizeof(Word) > 1 && static_cast<Word>(d + kHalf) < static_cast<Word>(2 * kHalf);
  return fits ? kHalfWord : kWholeWord;
}
template <typename Word>
SLUICE_HOST_DEVICE constexpr Word ExtendHalfWord(uint32_t half) {
  constexpr uint32_t kSign = 1u << (kWordBits<Word> / 2 - 1);
  return static_cast<Word>((half ^ kSign) - kSign);
}

// k of a SPARSE tile with `changed` of `n` elements.
SLUICE_HOST_DEVICE constexpr int SparseK(uint64_t changed, uint64_t n) {
  int k = 0;
  while (k < 15 && 133 * changed << (k + 1) <= 128 * n) ++k;
  return k;
}

// z of a DENSE tile, and d from z.
template <typename Word>
SLUICE_HOST_DEVICE constexpr Word ZigZag(Word d) {
  return static_cast<Word>(d & kTopBit<Word> ? ~(d << 1) : d << 1);
}
template <typename Word>
SLUICE_HOST_DEVICE constexpr Word UnZigZag(Word z) {
  return static_cast<Word>(z & 1 ? ~(z >> 1) : z >> 1);
}
inline constexpr uint32_t kMostUnary = 24;  // A larger q of a DENSE tile is stored whole.

SLUICE_HOST_DEVICE constexpr uint64_t IndexInTensor(const DeltaShard& shard, uint64_t l) {
  if (shard.row_len == shard.row_stride) return shard.first + l;
  return shard.first + l / shard.row_len * shard.row_stride + l % shard.row_len;
}
inline constexpr uint64_t kNotHeld = ~uint64_t{0};
// The element of the shard that has this index in the tensor, or kNotHeld.
SLUICE_HOST_DEVICE constexpr uint64_t ElementOfShard(const DeltaShard& shard, uint64_t index) {
  uint64_t l = index - shard.first;
  if (index < shard.first) return kNotHeld;
  if (shard.row_len != shard.row_stride) {
    const uint64_t column = l % shard.row_stride;
    if (column >= shard.row_len) return kNotHeld;
    l = l / shard.row_stride * shard.row_len + column;
  }
  return l < shard.count ? l : kNotHeld;
}

}  // namespace sluice::kernels
