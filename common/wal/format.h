#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/wal/record.h"

// The layout of segments and snapshots on disk. Integers are little-endian. A mark is a frame
// without a body that says up to which position the log is durable.
//
//   file     = FileHeader, then frames, each at a multiple of 8 bytes
//   frame    = FrameHeader, head, payload, zeros up to a multiple of 8 bytes
//   segment  = records of rising position, with marks between them; the bytes after the end of the
//              log are old contents of the file
//   snapshot = records numbered 1, 2, .. n, then one mark of position n; nothing follows it
namespace sluice::wal {

static_assert(std::endian::native == std::endian::little,
              "files are written as the structs lie in memory");

inline constexpr uint32_t kFormat = 1;

// Later formats will keep `magic`, `format` and `crc` where they are.
struct FileHeader {
  char magic[8] = {};
  uint32_t format = kFormat;
  uint32_t crc = 0;     // CRC32C of these 64 bytes with crc = 0.
  uint64_t number = 0;  // Segment: 1, 2, .. without gaps. Snapshot: the last position it covers.
  // Random, and new each time the file is reused. Part of the checksum of every frame header, so
  // that frames from an earlier use of the file are not accepted.
  uint64_t salt = 0;
  // Segment: position of its first record; all records before it were durable. Snapshot: 0.
  uint64_t first = 0;
  uint64_t reserved[3] = {};
};
static_assert(sizeof(FileHeader) == 64);

enum class FrameKind : uint8_t {
  kRecord = 1,
  // No body. In a segment: the log is durable up to `position`, the last record before the mark. In
  // a snapshot: its end.
  kMark = 2,
};

struct FrameHeader {
  uint32_t crc = 0;  // CRC32C of the salt and of the 44 bytes after this field.
  FrameKind kind = FrameKind::kRecord;
  uint8_t type = 0;  // Record::type; 0 in a mark.
  uint16_t reserved = 0;
  uint64_t position = 0;
  // The log was durable up to this position before this frame was written. In a mark: = position.
  // Always <= position.
  uint64_t durable = 0;
  uint32_t head_bytes = 0;
  uint32_t head_crc = 0;
  uint64_t payload_bytes = 0;
  uint32_t payload_crc = 0;
  uint32_t reserved2 = 0;

  uint64_t frame_bytes() const {
    return (sizeof(FrameHeader) + head_bytes + payload_bytes + 7) / 8 * 8;
  }
};
static_assert(sizeof(FrameHeader) == 48);

// Encode a file header with its magic and checksum.
std::string EncodeSegmentHeader(uint64_t number, uint64_t salt, Position first);
std::string EncodeSnapshotHeader(Position position, uint64_t salt);
// Decode and check a file header. `bytes` is the start of the file: 64 bytes, or fewer if the file
// is shorter. `file` names the file in errors.
// DATA_LOSS: the header is incomplete or damaged.
// FAILED_PRECONDITION (NEWER_FORMAT): a newer build wrote the file.
absl::StatusOr<FileHeader> DecodeSegmentHeader(absl::string_view bytes, absl::string_view file);
absl::StatusOr<FileHeader> DecodeSnapshotHeader(absl::string_view bytes, absl::string_view file);

void SealFrame(uint64_t salt, FrameHeader* header);  // Sets header->crc.
// Copies 48 bytes into `header`. Returns true if they are an undamaged frame header of a file with
// this salt.
bool DecodeFrame(uint64_t salt, const char* bytes, FrameHeader* header);

// Names of the files in a log's directory.
std::string SegmentName(uint64_t number);
std::string SnapshotName(Position position);
std::string SpareName(uint64_t number);
inline constexpr char kSnapshotTemporary[] = "snapshot.tmp";
struct FileName {
  enum Kind { kSegment, kSnapshot, kSpare, kTemporary, kLock, kOther } kind = kOther;
  uint64_t number = 0;
};
FileName ParseName(absl::string_view name);

}  // namespace sluice::wal
