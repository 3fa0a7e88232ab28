#pragma once

#include <atomic>
#include <cstdint>

#include "common/shm/segment.h"

namespace sluice::shm {

// The header of each allocation in a segment that other processes read. It holds the generation of
// the allocation while that is in use, and 0 afterwards.
//
// A reader checks the generation before and after it copies (IsCurrent), and the CRC of what it
// copied. So memory that was used again meanwhile causes an error, never wrong bytes. And a reader
// that is killed while it copies leaves no lock behind, because there is none.
struct BlockHead {
  std::atomic<uint64_t> generation;
  uint64_t bytes;  // Size of the data behind the header.
  char unused[48];
};
static_assert(sizeof(BlockHead) == 64 && std::atomic<uint64_t>::is_always_lock_free);

// The name of some bytes in a segment, which is sent to another process. They are a part of the
// allocation whose header stands at offset `block`. `offset` is that of the first byte, from the
// start of the segment.
struct Slice {
  uint32_t segment = 0;
  uint64_t block = 0, offset = 0, length = 0;
  uint64_t generation = 0;
};

inline const BlockHead& HeadAt(const Segment& segment, uint64_t block) {
  return *reinterpret_cast<const BlockHead*>(segment.data() + block);
}

// Whether the slice lies inside the segment, and behind the header of its block. Its length is not
// checked against the size of the block.
inline bool InBounds(const Segment& segment, const Slice& slice) {
  return slice.block % sizeof(BlockHead) == 0 && segment.Contains(slice.block, sizeof(BlockHead)) &&
         slice.offset >= slice.block + sizeof(BlockHead) &&
         segment.Contains(slice.offset, slice.length);
}
// Whether the block still has the generation of the slice. If so, everything read from the slice
// before this call belongs to that allocation.
inline bool IsCurrent(const Segment& segment, const Slice& slice) {
  std::atomic_thread_fence(std::memory_order_acquire);
  return HeadAt(segment, slice.block).generation.load(std::memory_order_acquire) ==
         slice.generation;
}

}  // namespace sluice::shm
