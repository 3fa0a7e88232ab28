#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/wal/record.h"

// How segments and snapshots lie on disk. Integers are little-endian.
//
//   file    = FileHeader, then frames, each at a multiple of 8
//   frame   = FrameHeader, head, payload, zeros up to a multiple of 8
//   segment = records of rising position, with marks between them; what follows the end of the log
//     is left from before
//   snapshot = records of positions 1, 2, .. n, then one mark of position n; nothing behind it
namespace sluice::wal {

static_assert(std::endian::native == std::endian::little,
              "files are written as the structs lie in memory");

inline constexpr uint32_t kFormat = 1;

// Magic, format and crc keep their places in all formats to come.
struct FileHeader {
  char magic[8] = {};
  uint32_t format = kFormat;
  uint32_t crc = 0;     // CRC32C of these 64 bytes with crc = 0.
  uint64_t number = 0;  // Segment: 1, 2, .. without gaps. Snapshot: the position it stands for.
  // Random, new each time the file is used: enters the checksum of every frame header.
  uint64_t salt = 0;
  // Segment: position of its first record; the log was durable up to the one before.
  uint64_t first = 0;
  uint64_t reserved[3] = {};
};
static_assert(sizeof(FileHeader) == 64);

enum class FrameKind : uint8_t {
  kRecord = 1,
  // No body. Segment: the log is durable up to `position`, the record before. Snapshot: its end.
  kMark = 2,
};

struct FrameHeader {
  uint32_t crc = 0;  // CRC32C of the salt and the 44 bytes behind this field.
  FrameKind kind = FrameKind::kRecord;
  uint8_t type = 0;  // The user's.
  uint16_t reserved = 0;
  uint64_t position = 0;
  // The log was durable up to here before this frame was written. In a mark: = position.
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

// Fills in the magic and the checksum.
std::string EncodeSegmentHeader(uint64_t number, uint64_t salt, Position first);
std::string EncodeSnapshotHeader(Position position, uint64_t salt);
// `bytes`: the file's first 64, or all if it has fewer. `file` is for errors. DATA_LOSS;
// FAILED_PRECONDITION (NEWER_FORMAT).
absl::StatusOr<FileHeader> DecodeSegmentHeader(absl::string_view bytes, absl::string_view file);
absl::StatusOr<FileHeader> DecodeSnapshotHeader(absl::string_view bytes, absl::string_view file);

void SealFrame(uint64_t salt, FrameHeader* header);  // Sets its crc.
// Whether 48 bytes are a frame header of a file with this salt, as one was written.
bool DecodeFrame(uint64_t salt, const char* bytes, FrameHeader* header);

// Names of files in a log's directory.
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
