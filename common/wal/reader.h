#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/wal/file_system.h"
#include "common/wal/format.h"
#include "common/wal/record.h"

namespace sluice::wal {

// A log's directory by its names, and what Open needs to go on after reading it.
struct Layout {
  // Number -> position of its first record; 0 of those the snapshot covers, which stay unread.
  std::map<uint64_t, Position> segments;
  std::vector<Position> snapshots;  // Rising.
  std::vector<uint64_t> spares;     // Rising.
  bool temporary = false;           // A snapshot.tmp is there.
  // In the last segment: from here to Found::end_offset it may not have reached the disk.
  uint64_t doubt_offset = 0;
};

// Reads the directory as log.h says, changing nothing. Both outputs are filled as far as the
// reading came.
absl::Status ReadDirectory(FileSystem* file_system, const std::string& dir, Replay* replay,
                           Found* found, Layout* layout);

}  // namespace sluice::wal
