#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/wal/file_system.h"
#include "common/wal/format.h"
#include "common/wal/record.h"

namespace sluice::wal {

// Reads one file of frames from front to back, through a window so that small ones cost no call
// each.
class FrameReader {
 public:
  enum class Got {
    kFrame,
    kNone,     // No frame header here: the end of what was written, or damage.
    kBadBody,  // A header, but its head or payload is not what was written.
  };

  // `path` names the file in errors.
  FrameReader(std::unique_ptr<File> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}

  absl::StatusOr<FileHeader> SegmentHeader();
  absl::StatusOr<FileHeader> SnapshotHeader();

  // Reads the frame at offset() and moves behind it, unless it is not whole. With `replay`, a
  // record's payload goes to memory from it and `entry` is filled (its head lives until the next
  // call); without, the body is stepped over unread. Errors: the system's and the replay's.
  absl::StatusOr<Got> Next(Replay* replay, FrameHeader* header, Entry* entry);

  // The highest position that any frame at or behind `from`, found by its checksum wherever it
  // starts, says was durable before it was written. None: no frame there.
  absl::StatusOr<std::optional<Position>> NewestDurable(uint64_t from);

  uint64_t offset() const { return offset_; }
  const std::string& path() const { return path_; }

 private:
  absl::StatusOr<std::string> HeaderBytes();
  // Bytes [offset, offset + size) of the file, fewer at its end; valid until the next call.
  absl::StatusOr<absl::string_view> Window(uint64_t offset, size_t size);
  // Reads to `to`, from the window as far as it goes. False: the file ends before.
  absl::StatusOr<bool> ReadTo(uint64_t offset, char* to, uint64_t size);

  const std::unique_ptr<File> file_;
  const std::string path_;
  uint64_t size_ = 0;  // Of the file; 0: not asked yet.
  uint64_t salt_ = 0;
  uint64_t offset_ = sizeof(FileHeader);
  std::string window_;
  uint64_t window_at_ = 0;
  std::string head_;
};

}  // namespace sluice::wal
