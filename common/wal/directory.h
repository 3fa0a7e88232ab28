#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wal/file_system.h"
#include "common/wal/format.h"
#include "common/wal/record.h"

namespace sluice::wal {

// The segment that new records are written to. offset <= bytes.
struct Segment {
  uint64_t number = 0;
  uint64_t salt = 0;
  uint64_t bytes = 0;   // Size on disk.
  uint64_t offset = 0;  // Where the next frame goes.
  std::unique_ptr<File> file;
  std::string path;

  // Bytes left for records. One frame header is kept free, so that a mark after the last record
  // always fits.
  uint64_t room() const { return bytes - std::min(bytes, offset + sizeof(FrameHeader)); }
};

// A file with space allocated on disk, ready to become a segment.
struct Spare {
  uint64_t number = 0;
  uint64_t bytes = 0;
};

// The operations that create, rename and remove a log's files. When one returns OK its effect is on
// disk. The exceptions are AllocateSpare(), the functions that remove files, and the truncation by
// RewriteEnd(): a crash may undo these, which does no harm.
// RESOURCE_EXHAUSTED: the disk is full, and nothing changed.
// Any other error: the state on disk is unknown.
//
// Several threads may call it, as long as no two calls work on the same files.
class Directory {
 public:
  Directory(FileSystem* file_system, std::string path)
      : file_system_(file_system), path_(std::move(path)) {}

  absl::StatusOr<Spare> AllocateSpare(uint64_t bytes);
  // Registers a spare file that Open() found in the directory. Called before any thread starts.
  // Spares allocated later get higher numbers.
  absl::StatusOr<Spare> AdoptSpare(uint64_t number);
  absl::Status RemoveSpare(const Spare& spare);

  // Turns the spare into segment `number`, whose first record will have position `first`. All
  // records before `first` must be durable. After RESOURCE_EXHAUSTED the spare is still usable.
  absl::StatusOr<Segment> StartSegment(const Spare& spare, uint64_t number, Position first);

  // Rewrites the bytes [from, end) of a log's last segment, syncs them, and truncates the file at
  // `end`.
  absl::Status RewriteEnd(const std::string& segment_path, uint64_t from, uint64_t end);

  // Writes a snapshot of `state` and returns the size of the file. `cancelled` is called between
  // pieces; if it returns true, the result is CANCELLED and no snapshot remains.
  absl::StatusOr<uint64_t> WriteSnapshot(Position position, const std::vector<Record>& state,
                                         const std::function<bool()>& cancelled);
  // Removes the snapshots of `positions` and, with `temporary`, the temporary file. A missing file
  // is not an error.
  absl::Status RemoveSnapshots(const std::vector<Position>& positions, bool temporary);

  // Turns segments of exactly `bytes` bytes into spares, at most `most` of them, and removes the
  // others, in order. Those that are done leave `segments`; the spares are added to `spares`, and
  // can be used at once. RESOURCE_EXHAUSTED: the disk is too full to change names; call it again
  // later with the rest of `segments`.
  absl::Status RecycleSegments(uint64_t bytes, size_t most, std::vector<uint64_t>* segments,
                               std::vector<Spare>* spares);

  absl::StatusOr<uint64_t> FreeBytes() { return file_system_->FreeBytes(path_); }
  std::string Path(absl::string_view name) const;

 private:
  absl::Status Remove(absl::string_view name);
  absl::StatusOr<uint64_t> SizeOf(absl::string_view name);
  // Syncs the directory. Here a full disk is a final error (UNKNOWN), not RESOURCE_EXHAUSTED,
  // because names have already changed.
  absl::Status Sync();

  FileSystem* const file_system_;
  const std::string path_;
  std::atomic<uint64_t> next_spare_ = 1;
};

}  // namespace sluice::wal
