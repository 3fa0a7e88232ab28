#pragma once

#include <atomic>
#include <cstdint>

#include "common/shm/segment.h"

namespace sluice::shm {

// What stands before each allocation in a segment that others read: its generation while it is in
// use, 0 once it is not. A reader looks before and after it copies (BlockIs); with the CRC of what
// it copied that makes recycled memory an error, never wrong bytes, and leaves nothing in shared
// memory that a reader killed half-way could hold.
struct BlockHead {
  std::atomic<uint64_t> generation;
  uint64_t bytes;  // Of the data behind.
  char unused[48];
};
static_assert(sizeof(BlockHead) == 64 && std::atomic<uint64_t>::is_always_lock_free);

// Bytes in a segment, as they are told to another process: part of the allocation whose head stands
// at `block`.
struct Slice {
  uint32_t segment = 0;
  uint64_t block = 0, offset = 0, length = 0;
  uint64_t generation = 0;
};

inline const BlockHead& HeadAt(const Segment& segment, uint64_t block) {
  return *reinterpret_cast<const BlockHead*>(segment.data() + block);
}

// The slice lies within the segment, and within the data of its block as far as that says.
inline bool InBounds(const Segment& segment, const Slice& slice) {
  return slice.block % sizeof(BlockHead) == 0 && segment.Holds(slice.block, sizeof(BlockHead)) &&
         slice.offset >= slice.block + sizeof(BlockHead) &&
         segment.Holds(slice.offset, slice.length);
}
// The block is still what the slice was made of. Reads of its data before this call are of that
// block, if true.
inline bool BlockIs(const Segment& segment, const Slice& slice) {
  std::atomic_thread_fence(std::memory_order_acquire);
  return HeadAt(segment, slice.block).generation.load(std::memory_order_acquire) ==
         slice.generation;
}

}  // namespace sluice::shm
