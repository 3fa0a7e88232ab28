#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace sluice::shm {

// Parts a range of bytes: hands out offsets, smallest hole that fits first and of those the lowest,
// joins neighbours that come back. O(log holes). Touches no memory. Not thread-safe.
class OffsetAllocator {
 public:
  // Sizes are rounded up to it; offsets are multiples of it.
  static constexpr uint64_t kAlign = 64;

  explicit OffsetAllocator(uint64_t bytes);

  // No offset: no hole is large enough.
  std::optional<uint64_t> Allocate(uint64_t bytes);
  // What Allocate gave for `bytes`.
  void Free(uint64_t offset, uint64_t bytes);

  uint64_t free_bytes() const { return free_; }
  uint64_t largest_hole() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  bool idle() const { return free_ == bytes_; }

 private:
  static uint64_t Round(uint64_t bytes) {
    return bytes == 0 ? kAlign : (bytes + kAlign - 1) / kAlign * kAlign;
  }
  void Add(uint64_t offset, uint64_t bytes);
  void Remove(uint64_t offset, uint64_t bytes);

  const uint64_t bytes_;
  uint64_t free_ = 0;
  std::map<uint64_t, uint64_t> by_offset_;           // Holes: offset -> size.
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // The same, (size, offset).
};

}  // namespace sluice::shm
