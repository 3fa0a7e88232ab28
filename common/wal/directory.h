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

// A segment that is written to.
struct Segment {
  uint64_t number = 0;
  uint64_t salt = 0;
  uint64_t bytes = 0;   // Allocated.
  uint64_t offset = 0;  // Where the next frame goes.
  std::unique_ptr<File> file;
  std::string path;

  // For records: the mark behind the last one always fits.
  uint64_t room() const { return bytes - std::min(bytes, offset + sizeof(FrameHeader)); }
};

// A file with room on the disk, to become a segment.
struct Spare {
  uint64_t number = 0;
  uint64_t bytes = 0;
};

// The steps in which a log's files come and go; each ends with its effect on the disk, unless said
// otherwise. RESOURCE_EXHAUSTED: the disk is full, nothing changed. Any other error: what is on the
// disk is not known.
//
// Thread-safe: each call works on files of its own.
class Directory {
 public:
  Directory(FileSystem* file_system, std::string path)
      : file_system_(file_system), path_(std::move(path)) {}

  absl::StatusOr<Spare> AllocateSpare(uint64_t bytes);
  // One found at Open, before there are threads; later ones get higher numbers.
  absl::StatusOr<Spare> AdoptSpare(uint64_t number);
  absl::Status RemoveSpare(const Spare& spare);

  // Turns the spare into segment `number`, whose first record will be of position `first`; all
  // before is durable. On RESOURCE_EXHAUSTED the spare is still one.
  absl::StatusOr<Segment> StartSegment(const Spare& spare, uint64_t number, Position first);

  // Writes [from, end) of a log's last segment once more, syncs, and cuts off what lies behind.
  absl::Status SettleEnd(const std::string& segment_path, uint64_t from, uint64_t end);

  // `cancelled` is asked between pieces; CANCELLED if it says so. Answers the file's size.
  absl::StatusOr<uint64_t> WriteSnapshot(Position position, const std::vector<Record>& state,
                                         const std::function<bool()>& cancelled);
  // Older snapshots and the temporary file; missing ones are fine.
  absl::Status RemoveSnapshots(const std::vector<Position>& positions, bool temporary);

  // Segments of `bytes` bytes become spares, up to `most` of them; the others are removed. Answers
  // the spares, usable at once.
  absl::StatusOr<std::vector<Spare>> Recycle(const std::vector<uint64_t>& segments, uint64_t bytes,
                                             size_t most);

  absl::StatusOr<uint64_t> FreeBytes() { return file_system_->FreeBytes(path_); }
  std::string Path(absl::string_view name) const;

 private:
  absl::Status Remove(absl::string_view name);
  absl::StatusOr<uint64_t> SizeOf(absl::string_view name);
  // As SyncDir, but a full disk is final too: names have changed already.
  absl::Status Sync();

  FileSystem* const file_system_;
  const std::string path_;
  std::atomic<uint64_t> next_spare_ = 1;
};

}  // namespace sluice::wal
