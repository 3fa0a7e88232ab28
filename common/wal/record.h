#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::wal {

// Where a record stands: the first is 1, each next one more, over all segments and restarts. 0:
// none yet.
using Position = uint64_t;

inline constexpr uint32_t kMaxHeadBytes = 64u << 20;
inline constexpr uint64_t kMaxPayloadBytes = 1ull << 30;

// Bytes that several share and nobody changes any more.
struct Part {
  std::shared_ptr<const void> owner;  // Keeps `bytes`; may be null where they live for ever.
  absl::string_view bytes;
  uint32_t crc32c = 0;  // Of `bytes`. Trusted: computed once, where the bytes came from.
};

// What a user of the log writes: a small head in its own encoding, and bulk that is never copied.
struct Record {
  uint8_t type = 0;  // The user's, any value.
  std::string head;  // At most kMaxHeadBytes.
  // Read back as one run of bytes, in this order; at most kMaxPayloadBytes in sum.
  std::vector<Part> payload;
};

// What comes back: the same, its payload in one piece.
struct Entry {
  Position position = 0;  // 0 in a snapshot.
  uint8_t type = 0;
  absl::string_view head;             // Until the call returns.
  std::shared_ptr<const void> owner;  // Of `payload`; null if that is empty.
  absl::string_view payload;
  uint32_t payload_crc32c = 0;  // Verified.
};

// Takes what a directory holds: first the snapshot's records, if there is one, then each record
// after it, in order. An error ends the reading and becomes its result.
class Replay {
 public:
  // Memory that stays as long as its owner: `data` has room for the size asked.
  struct Memory {
    std::shared_ptr<void> owner;
    char* data = nullptr;
  };

  virtual ~Replay() = default;
  // Where a payload of `size` > 0 bytes is to be read to. `head` is verified already; the payload
  // is not.
  virtual absl::StatusOr<Memory> Allocate(uint8_t type, absl::string_view head, uint64_t size);
  // A snapshot starts; it says what the records up to `position` led to. OnRecord with position 0
  // follows for each of its records.
  virtual absl::Status OnSnapshot(Position position) = 0;
  // Also: OnSnapshotEnd follows before the first record of the log.
  virtual absl::Status OnSnapshotEnd() { return absl::OkStatus(); }
  virtual absl::Status OnRecord(Entry entry) = 0;
};

// What was found in a directory.
struct Found {
  Position snapshot = 0;  // Position the snapshot stands for; 0: no snapshot.
  uint64_t snapshot_bytes = 0;
  uint64_t snapshot_records = 0;
  Position last = 0;        // Of the last whole record.
  uint64_t records = 0;     // After the snapshot.
  uint64_t bytes = 0;       // Of those in the log, framing included.
  std::string end_segment;  // File with the end of the log; empty: no segment yet.
  uint64_t end_offset = 0;  // Where in it.
  // Something was begun behind the end and is not whole: a write that nothing was promised for.
  bool torn = false;
  // Harmless oddities, for people: a snapshot left aside, a leftover file.
  std::vector<std::string> remarks;
};

}  // namespace sluice::wal
