#include "common/wal/format.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/digest.h"
#include "common/base/status.h"

namespace sluice::wal {
namespace {
constexpr char kSegmentMagic[] = "SLUICELG";
constexpr char kSnapshotMagic[] = "SLUICESN";

template <typename T>
absl::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

uint32_t HeaderCrc(FileHeader header) {
  header.crc = 0;
  return Crc32c(BytesOf(header));
}

uint32_t FrameCrc(uint64_t salt, const FrameHeader& header) {
  return Crc32c(BytesOf(header).substr(sizeof(header.crc)), Crc32c(BytesOf(salt)));
}

std::string Encode(FileHeader header, const char* magic) {
  std::memcpy(header.magic, magic, sizeof(header.magic));
  header.crc = HeaderCrc(header);
  return std::string(BytesOf(header));
}

absl::StatusOr<FileHeader> Decode(absl::string_view bytes, absl::string_view file,
                                  const char* magic) {
  FileHeader header;
  if (bytes.size() < sizeof(header)) {
    return Error(absl::StatusCode::kDataLoss, "BAD_CRC",
                 absl::StrCat(file, " has ", bytes.size(), " bytes, not even its header of ",
                              sizeof(header)));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, magic, sizeof(header.magic)) != 0 ||
      HeaderCrc(header) != header.crc) {
    return Error(absl::StatusCode::kDataLoss, "BAD_CRC",
                 absl::StrCat(file, " at offset 0: its header is damaged"));
  }
  if (header.format > kFormat) {
    return ErrorWith(
        absl::StatusCode::kFailedPrecondition,
        {.reason = "NEWER_FORMAT", .hint = "run the build that wrote it, or a newer one"},
        absl::StrCat(file, " has format ", header.format, ", but this build reads formats up to ",
                     kFormat));
  }
  return header;
}
}  // namespace

std::string EncodeSegmentHeader(uint64_t number, uint64_t salt, Position first) {
  return Encode({.number = number, .salt = salt, .first = first}, kSegmentMagic);
}
std::string EncodeSnapshotHeader(Position position, uint64_t salt) {
  return Encode({.number = position, .salt = salt}, kSnapshotMagic);
}

absl::StatusOr<FileHeader> DecodeSegmentHeader(absl::string_view bytes, absl::string_view file) {
  return Decode(bytes, file, kSegmentMagic);
}
absl::StatusOr<FileHeader> DecodeSnapshotHeader(absl::string_view bytes, absl::string_view file) {
  return Decode(bytes, file, kSnapshotMagic);
}

void SealFrame(uint64_t salt, FrameHeader* header) { header->crc = FrameCrc(salt, *header); }

bool DecodeFrame(uint64_t salt, const char* bytes, FrameHeader* header) {
  std::memcpy(header, bytes, sizeof(*header));
  // The cheap checks come first, because FindNewestDurable() calls this for every eighth byte of a
  // segment.
  if (header->reserved != 0 || header->reserved2 != 0 || header->durable > header->position)
    return false;
  if (header->head_bytes > kMaxHeadBytes || header->payload_bytes > kMaxPayloadBytes) return false;
  if (header->kind != FrameKind::kRecord && header->kind != FrameKind::kMark) return false;
  return FrameCrc(salt, *header) == header->crc;
}

std::string SegmentName(uint64_t number) { return absl::StrFormat("log-%016x.seg", number); }
std::string SnapshotName(Position position) {
  return absl::StrFormat("snapshot-%016x.snap", position);
}
std::string SpareName(uint64_t number) { return absl::StrCat("spare-", number); }

FileName ParseName(absl::string_view name) {
  absl::string_view rest = name;
  FileName parsed;

  if (name == kSnapshotTemporary) return {FileName::kTemporary};
  if (name == "lock") return {FileName::kLock};

  if (absl::ConsumePrefix(&rest, "spare-"))
    return absl::SimpleAtoi(rest, &parsed.number) ? FileName{FileName::kSpare, parsed.number}
                                                  : FileName{};

  if (absl::ConsumePrefix(&rest, "log-") && absl::ConsumeSuffix(&rest, ".seg"))
    parsed.kind = FileName::kSegment;
  else if (rest = name;
           absl::ConsumePrefix(&rest, "snapshot-") && absl::ConsumeSuffix(&rest, ".snap"))
    parsed.kind = FileName::kSnapshot;
  else return {};

  if (rest.size() != 16 || !absl::SimpleHexAtoi(rest, &parsed.number)) return {};
  return parsed;
}

}  // namespace sluice::wal
