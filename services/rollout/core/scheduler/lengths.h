#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace sluice {

// The 90th percentile of answer lengths, of about the last 4096: counts in buckets, four to each
// power of two, halved when full.
class LengthQuantile {
 public:
  void Add(uint32_t length) {
    ++counts_[Bucket(length)];
    if (++total_ == 4096) {
      total_ = 0;
      for (uint32_t& count : counts_) total_ += count /= 2;
    }
    uint64_t below = 0;
    uint32_t bucket = 0;
    while (bucket + 1 < counts_.size() && (below += counts_[bucket]) * 10 < uint64_t{total_} * 9)
      ++bucket;
    p90_ = Start(bucket);
  }
  uint32_t p90() const { return p90_; }  // The start of its bucket; 0 before the first.

 private:
  static uint32_t Bucket(uint32_t length) {
    if (length < 4) return length;
    const uint32_t power = std::bit_width(length) - 1;
    return 4 * (power - 1) + ((length >> (power - 2)) & 3);
  }
  static uint32_t Start(uint32_t bucket) {
    return bucket < 4 ? bucket : (4 + bucket % 4) << (bucket / 4 - 1);
  }

  std::array<uint32_t, 124> counts_ = {};
  uint32_t total_ = 0;
  uint32_t p90_ = 0;
};

}  // namespace sluice
