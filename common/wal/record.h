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

// Number of a record in the log. The first record has position 1, and each later one has the next
// number, across segments and restarts. 0 means "no record yet".
using Position = uint64_t;

inline constexpr uint32_t kMaxHeadBytes = 64u << 20;
inline constexpr uint64_t kMaxPayloadBytes = 1ull << 30;

// Immutable bytes that may have several owners.
struct Part {
  // Keeps `bytes` alive; null if they live as long as the process.
  std::shared_ptr<const void> owner;
  absl::string_view bytes;
  // CRC32C of `bytes`. The log does not check it: whoever made the bytes computed it.
  uint32_t crc32c = 0;
};

// What the caller appends: a small head in the caller's own encoding, and a payload that is not
// copied (the log refers to its bytes until they are written).
struct Record {
  uint8_t type = 0;  // Chosen by the caller; the log does not interpret it.
  std::string head;  // At most kMaxHeadBytes.
  // The log reads the parts back as one run of bytes, in this order. At most kMaxPayloadBytes in
  // all.
  std::vector<Part> payload;
};

// A record as it is read back; its payload is in one piece.
struct Entry {
  Position position = 0;  // 0 for a record of a snapshot.
  uint8_t type = 0;
  absl::string_view head;             // Valid until OnRecord() returns.
  std::shared_ptr<const void> owner;  // Keeps `payload` alive; null if the payload is empty.
  absl::string_view payload;
  uint32_t payload_crc32c = 0;  // CRC32C of `payload`, already verified.
};

// Receives the contents of a log directory: first the records of the snapshot, if there is one,
// then each record after the snapshot, in order. If a method returns an error, reading stops and
// returns that error.
class Replay {
 public:
  // Memory for one payload; it lives as long as `owner`. `data` has room for the requested size.
  struct Memory {
    std::shared_ptr<void> owner;
    char* data = nullptr;
  };

  virtual ~Replay() = default;
  // Returns the memory that a payload of `size` > 0 bytes is read into. `head` has been verified,
  // the payload has not. The default allocates it on the heap.
  virtual absl::StatusOr<Memory> Allocate(uint8_t type, absl::string_view head, uint64_t size);
  // A snapshot begins. It describes the state that the records 1..`position` produced. OnRecord()
  // with position 0 follows for each of its records.
  virtual absl::Status OnSnapshot(Position position) = 0;
  // The snapshot is complete. Called before the first record of the log.
  virtual absl::Status OnSnapshotEnd() { return absl::OkStatus(); }
  virtual absl::Status OnRecord(Entry entry) = 0;
};

// What reading a directory found.
struct Found {
  Position snapshot = 0;  // The snapshot covers records 1..snapshot; 0 if there is none.
  uint64_t snapshot_bytes = 0;
  uint64_t snapshot_records = 0;
  Position last = 0;     // Position of the last complete record.
  uint64_t records = 0;  // Number of records after the snapshot.
  uint64_t bytes = 0;    // Size of those records in the log, with their frame headers and padding.
  std::string end_segment;  // File that contains the end of the log; empty if there is no segment.
  uint64_t end_offset = 0;  // Offset of the end of the log in that file.
  // An incomplete write follows the end of the log. It was never acknowledged as durable.
  bool torn = false;
  // Harmless findings, as text for people: an ignored damaged snapshot, an unknown file.
  std::vector<std::string> remarks;
};

}  // namespace sluice::wal
