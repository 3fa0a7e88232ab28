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

// Reads one file of frames from front to back. Small frames are read through a buffer (the window),
// so that they do not cost a system call each. Not thread-safe.
class FrameReader {
 public:
  enum class Result {
    kFrame,
    kNone,     // No frame header at offset(): the end of the written part, or damage.
    kBadBody,  // A valid frame header, but its head or payload is incomplete or damaged.
  };

  // `path` names the file in errors.
  FrameReader(std::unique_ptr<File> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}

  absl::StatusOr<FileHeader> SegmentHeader();
  absl::StatusOr<FileHeader> SnapshotHeader();

  // Reads the frame at offset() and, if it is complete, moves offset() to the next one. With
  // `replay`, the payload of a record is read into memory from replay->Allocate(), and `entry` is
  // filled; entry->head is valid until the next call. Without `replay`, the body is skipped without
  // being read or checked.
  // Errors come from the file or from `replay`; damage is a value of Result, not an error.
  absl::StatusOr<Result> Next(Replay* replay, FrameHeader* header, Entry* entry);

  // Searches for frames at or after `from`, at every multiple of 8 bytes, and returns the highest
  // position that one of them says was durable before it was written. nullopt: no frame was found.
  // Reading the salt (SegmentHeader) must come first.
  absl::StatusOr<std::optional<Position>> FindNewestDurable(uint64_t from);

  uint64_t offset() const { return offset_; }
  const std::string& path() const { return path_; }

 private:
  absl::StatusOr<std::string> HeaderBytes();
  // Returns the bytes [offset, offset + size) of the file, fewer at its end. Valid until the next
  // call.
  absl::StatusOr<absl::string_view> Window(uint64_t offset, size_t size);
  // Copies `size` bytes at `offset` to `to`, from the window as far as it reaches. Returns false if
  // the file is shorter.
  absl::StatusOr<bool> ReadTo(uint64_t offset, char* to, uint64_t size);

  const std::unique_ptr<File> file_;
  const std::string path_;
  uint64_t size_ = 0;  // Size of the file; 0 until it is needed.
  uint64_t salt_ = 0;
  uint64_t offset_ = sizeof(FileHeader);
  std::string window_;
  uint64_t window_at_ = 0;
  std::string head_;
};

}  // namespace sluice::wal
