#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "common/shm/block.h"
#include "common/shm/segment.h"

namespace sluice::queue {

// The memory for one job's payload. It consists of segments, which clients on the same host may map
// for reading (only those of their own job). An allocation goes back when its last owner releases
// it. Its memory, whose pages are mapped already, is then used again. A segment that stays empty is
// returned to the system.
//
// A thread of the arena makes the next segment while the last one fills. Segments grow with the
// arena: 16 MiB each up to 64 MiB in all, then a quarter of the total, up to 256 MiB. The overhead
// beyond the payload is 64 B per allocation, and holes.
//
// Thread-safe. Owns one thread, `segments`. The arena may be destroyed before the memory that it
// handed out.
class Arena {
 public:
  struct Options {
    uint64_t segment_bytes = 16 << 20;
    // If false, no thread runs, and the caller that needs a segment makes it.
    bool ahead = true;
  };
  Arena();
  explicit Arena(const Options& options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Returns `bytes` of memory at a multiple of 64, writable until it is shared. Never null: if the
  // system has no memory for a segment, the memory comes from the heap, and its bytes are sent in
  // messages.
  std::shared_ptr<char> Allocate(size_t bytes);

  // Where the bytes of an allocation are, for a reader that maps the segment. Nullopt if they are
  // not in an arena.
  static std::optional<shm::Slice> SliceOf(const std::shared_ptr<const char>& data,
                                           uint64_t length);

  struct Shared {
    Fd fd;
    uint64_t bytes = 0;
  };
  // Returns a new read-only file descriptor of a segment, and its size.
  // NOT_FOUND: the segment was returned to the system.
  // RESOURCE_EXHAUSTED: no file descriptor is left.
  absl::StatusOr<Shared> ShareSegment(uint32_t segment) const;

  // Returns to the system those segments that were empty since the last call. One empty segment is
  // kept as long as anything is stored. Call it every few seconds.
  void Trim();

  struct Use {
    uint64_t segments = 0;
    uint64_t bytes = 0;       // Total size of the segments.
    uint64_t used_bytes = 0;  // Total size of the allocations, rounded up.
    uint64_t allocations = 0;
  };
  Use use() const;

 private:
  struct State;
  struct Block;
  const std::shared_ptr<State> state_;
};

}  // namespace sluice::queue
