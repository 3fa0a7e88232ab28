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

// The files of a log directory, and what Open() needs to continue after reading.
struct Layout {
  // Segment number -> position of its first record; 0 for segments that the snapshot covers, which
  // are not read.
  std::map<uint64_t, Position> segments;
  std::vector<Position> snapshots;  // In rising order.
  std::vector<uint64_t> spares;     // In rising order.
  bool temporary = false;           // A file snapshot.tmp exists.
  // The bytes of the last segment from here to Found::end_offset may not have reached the disk.
  uint64_t doubt_offset = 0;
};

// Reads the directory as described in log.h and changes nothing. `found` and `layout` are filled as
// far as reading came, also on errors. Errors: as Log::Open().
absl::Status ReadDirectory(FileSystem* file_system, const std::string& dir, Replay* replay,
                           Found* found, Layout* layout);

}  // namespace sluice::wal
