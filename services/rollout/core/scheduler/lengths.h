#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace sluice {

// Estimates the 90th percentile of answer lengths, in tokens. It counts lengths in buckets, four to
// each power of two. Whenever it has counted 4096 it halves all counts, so that old answers weigh
// less and less.
class LengthQuantile {
 public:
  void Add(uint32_t length) {
    ++counts_[Bucket(length)];
    if (++total_ == 4096) {
      total_ = 0;
      for (uint32_t& count : counts_) total_ += count /= 2;
    }

    // The percentile is in the first bucket up to which there are at least 9/10 of the counts.
    uint64_t below = 0;
    uint32_t bucket = 0;
    while (bucket + 1 < counts_.size() && (below += counts_[bucket]) * 10 < uint64_t{total_} * 9)
      ++bucket;
    p90_ = Start(bucket);
  }
  // Returns the smallest length of the percentile's bucket; 0 before the first Add().
  uint32_t p90() const { return p90_; }

 private:
  // Lengths below 4 have a bucket each. From there on the two bits below the highest set bit choose
  // among the four buckets of a power of two.
  static uint32_t Bucket(uint32_t length) {
    if (length < 4) return length;
    const uint32_t power = std::bit_width(length) - 1;
    return 4 * (power - 1) + ((length >> (power - 2)) & 3);
  }
  // Returns the smallest length in `bucket`.
  static uint32_t Start(uint32_t bucket) {
    return bucket < 4 ? bucket : (4 + bucket % 4) << (bucket / 4 - 1);
  }

  std::array<uint32_t, 124> counts_ = {};  // By bucket; Bucket(UINT32_MAX) is 123.
  uint32_t total_ = 0;
  uint32_t p90_ = 0;
};

}  // namespace sluice
