#include "common/shm/allocator.h"

#include "common/base/status.h"

namespace sluice::shm {

OffsetAllocator::OffsetAllocator(uint64_t bytes) : bytes_(bytes / kAlign * kAlign) {
  if (bytes_ > 0) AddHole(0, bytes_);
}

void OffsetAllocator::AddHole(uint64_t offset, uint64_t bytes) {
  by_offset_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
  free_ += bytes;
  SLUICE_CHECK(by_offset_.size() == by_size_.size() && free_ <= bytes_);
}

void OffsetAllocator::RemoveHole(uint64_t offset, uint64_t bytes) {
  by_offset_.erase(offset);
  by_size_.erase({bytes, offset});
  free_ -= bytes;
}

std::optional<uint64_t> OffsetAllocator::Allocate(uint64_t bytes) {
  if (bytes > bytes_) return std::nullopt;
  const uint64_t size = RoundUp(bytes);
  const auto hole = by_size_.lower_bound({size, 0});
  if (hole == by_size_.end()) return std::nullopt;

  const auto [hole_bytes, offset] = *hole;
  RemoveHole(offset, hole_bytes);
  if (hole_bytes > size) AddHole(offset + size, hole_bytes - size);
  return offset;
}

void OffsetAllocator::Free(uint64_t offset, uint64_t bytes) {
  uint64_t size = RoundUp(bytes);
  SLUICE_CHECK(offset % kAlign == 0 && offset + size <= bytes_);

  const auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.begin()) {
    const auto [before, before_bytes] = *std::prev(next);
    SLUICE_CHECK(before + before_bytes <= offset);  // Otherwise it is free already.
    if (before + before_bytes == offset) {
      RemoveHole(before, before_bytes);
      offset = before;
      size += before_bytes;
    }
  }

  if (const auto after = by_offset_.lower_bound(offset); after != by_offset_.end()) {
    const auto [behind, behind_bytes] = *after;
    SLUICE_CHECK(offset + size <= behind);
    if (offset + size == behind) {
      RemoveHole(behind, behind_bytes);
      size += behind_bytes;
    }
  }
  AddHole(offset, size);
}

}  // namespace sluice::shm
