#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/shm/block.h"
#include "common/shm/segment.h"

namespace sluice::queue {

// The memory of one job's payload: segments that clients on the same host may map to read (never
// those of another job's), parted by offset. An allocation goes back when the last one who shares
// it lets go, and is used again, warm; a segment that stays empty goes back to the system.
//
// Segments are made ahead, by a thread of the arena, while one is filling, and grow with the whole:
// 16 MiB each up to 64 MiB, then a quarter of what there is, up to 256 MiB. What they hold beyond
// the payload is 64 B an allocation, and holes.
//
// Thread-safe. Owns one thread, `segments`. May go before the bytes it handed out.
class Arena {
 public:
  struct Options {
    uint64_t segment_bytes = 16 << 20;
    // False: segments are made when they are needed, by who needs them, and no thread runs.
    bool ahead = true;
  };
  Arena();
  explicit Arena(const Options& options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // `bytes` of memory, at a multiple of 64, writable until it is shared. Never null: where the
  // system has no memory left for a segment it comes of the heap, and is then sent in messages.
  std::shared_ptr<char> Allocate(size_t bytes);

  // Where bytes of an allocation lie, for a reader that maps the segment; none: not in an arena.
  static std::optional<shm::Slice> SliceOf(const std::shared_ptr<const char>& data,
                                           uint64_t length);

  // A new descriptor of a segment, for reading alone, and its size. NOT_FOUND: it went back to the
  // system.
  struct Shared {
    shm::Fd fd;
    uint64_t bytes = 0;
  };
  absl::StatusOr<Shared> Share(uint32_t segment) const;

  // Gives back the segments that were empty at every moment since the last call, but for one while
  // anything is stored. Call it each few seconds.
  void Trim();

  struct Use {
    uint64_t segments = 0;
    uint64_t bytes = 0;       // Of segments.
    uint64_t used_bytes = 0;  // Of allocations, as rounded.
    uint64_t allocations = 0;
  };
  Use use() const;

 private:
  struct State;
  struct Block;
  const std::shared_ptr<State> state_;
};

}  // namespace sluice::queue
