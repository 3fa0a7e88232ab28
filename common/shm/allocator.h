#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace sluice::shm {

// Divides a range of bytes into allocations, which are offsets into the range. It picks the
// smallest hole that is large enough, and of equal holes the one with the lowest offset. Holes that
// touch are joined. Each call takes O(log holes). It touches no memory itself. Not thread-safe.
class OffsetAllocator {
 public:
  // Sizes are rounded up to this, and offsets are multiples of it.
  static constexpr uint64_t kAlign = 64;

  explicit OffsetAllocator(uint64_t bytes);

  // Returns nothing if no hole is large enough.
  std::optional<uint64_t> Allocate(uint64_t bytes);
  // Gives back an allocation that Allocate(bytes) returned. Aborts if it is free already.
  void Free(uint64_t offset, uint64_t bytes);

  uint64_t free_bytes() const { return free_; }
  uint64_t largest_hole() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  bool idle() const { return free_ == bytes_; }  // Nothing is allocated.

 private:
  static uint64_t RoundUp(uint64_t bytes) {
    return bytes == 0 ? kAlign : (bytes + kAlign - 1) / kAlign * kAlign;
  }
  void AddHole(uint64_t offset, uint64_t bytes);
  void RemoveHole(uint64_t offset, uint64_t bytes);

  const uint64_t bytes_;
  uint64_t free_ = 0;
  std::map<uint64_t, uint64_t> by_offset_;           // The holes: offset -> size.
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // The same holes as (size, offset).
};

}  // namespace sluice::shm
