#include "common/wal/frame_reader.h"

#include <algorithm>
#include <cstring>

#include "common/base/digest.h"
#include "common/base/status.h"

namespace sluice::wal {
namespace {
constexpr size_t kWindowBytes = 256 << 10;
}  // namespace

absl::StatusOr<absl::string_view> FrameReader::Window(uint64_t offset, size_t size) {
  if (offset < window_at_ || offset + size > window_at_ + window_.size()) {
    window_.resize(std::max(size, kWindowBytes));
    window_at_ = offset;
    SLUICE_ASSIGN_OR_RETURN(const size_t n, file_->Read(offset, window_.data(), window_.size()));
    window_.resize(n);
  }
  return absl::string_view(window_).substr(std::min<uint64_t>(offset - window_at_, window_.size()),
                                           size);
}

absl::StatusOr<bool> FrameReader::ReadTo(uint64_t offset, char* to, uint64_t size) {
  if (size <= kWindowBytes / 4) {
    SLUICE_ASSIGN_OR_RETURN(const absl::string_view bytes, Window(offset, size));
    std::memcpy(to, bytes.data(), bytes.size());
    return bytes.size() == size;
  }
  // Large reads go past the window, after using what it holds.
  uint64_t done = 0;
  if (offset >= window_at_ && offset < window_at_ + window_.size()) {
    done = std::min<uint64_t>(size, window_at_ + window_.size() - offset);
    std::memcpy(to, window_.data() + (offset - window_at_), done);
  }
  SLUICE_ASSIGN_OR_RETURN(const size_t n, file_->Read(offset + done, to + done, size - done));
  return n == size - done;
}

absl::StatusOr<std::string> FrameReader::HeaderBytes() {
  SLUICE_ASSIGN_OR_RETURN(const absl::string_view bytes, Window(0, sizeof(FileHeader)));
  return std::string(bytes);
}

absl::StatusOr<FileHeader> FrameReader::SegmentHeader() {
  SLUICE_ASSIGN_OR_RETURN(const std::string bytes, HeaderBytes());
  SLUICE_ASSIGN_OR_RETURN(const FileHeader header, DecodeSegmentHeader(bytes, path_));
  salt_ = header.salt;
  return header;
}

absl::StatusOr<FileHeader> FrameReader::SnapshotHeader() {
  SLUICE_ASSIGN_OR_RETURN(const std::string bytes, HeaderBytes());
  SLUICE_ASSIGN_OR_RETURN(const FileHeader header, DecodeSnapshotHeader(bytes, path_));
  salt_ = header.salt;
  return header;
}

absl::StatusOr<FrameReader::Result> FrameReader::Next(Replay* replay, FrameHeader* header,
                                                      Entry* entry) {
  SLUICE_ASSIGN_OR_RETURN(const absl::string_view bytes, Window(offset_, sizeof(FrameHeader)));
  if (bytes.size() < sizeof(FrameHeader) || !DecodeFrame(salt_, bytes.data(), header))
    return Result::kNone;
  const uint64_t head_at = offset_ + sizeof(FrameHeader), payload_at = head_at + header->head_bytes;
  // Check the lengths against the file size before anything is allocated: a damaged header could
  // name any length.
  if (size_ == 0) {
    SLUICE_ASSIGN_OR_RETURN(size_, file_->Size());
  }
  if (payload_at + header->payload_bytes > size_) return Result::kBadBody;
  if (replay == nullptr || header->kind == FrameKind::kMark) {
    offset_ += header->frame_bytes();
    return Result::kFrame;
  }

  head_.resize(header->head_bytes);
  SLUICE_ASSIGN_OR_RETURN(bool whole, ReadTo(head_at, head_.data(), head_.size()));
  if (!whole || Crc32c(head_) != header->head_crc) return Result::kBadBody;
  *entry = {.position = header->position,
            .type = header->type,
            .head = head_,
            .payload_crc32c = header->payload_crc};

  if (header->payload_bytes > 0) {
    SLUICE_ASSIGN_OR_RETURN(Replay::Memory memory,
                            replay->Allocate(header->type, head_, header->payload_bytes));
    SLUICE_ASSIGN_OR_RETURN(whole, ReadTo(payload_at, memory.data, header->payload_bytes));
    entry->payload = {memory.data, header->payload_bytes};
    entry->owner = std::move(memory.owner);
  }

  if (!whole || Crc32c(entry->payload) != header->payload_crc) return Result::kBadBody;
  offset_ += header->frame_bytes();
  return Result::kFrame;
}

absl::StatusOr<std::optional<Position>> FrameReader::FindNewestDurable(uint64_t from) {
  std::optional<Position> newest;
  // Frames are aligned to 8 bytes, so nothing starts in between.
  for (uint64_t at = (from + 7) / 8 * 8;;) {
    SLUICE_ASSIGN_OR_RETURN(const absl::string_view bytes, Window(at, kWindowBytes));
    if (bytes.size() < sizeof(FrameHeader)) return newest;
    size_t i = 0;
    for (; i + sizeof(FrameHeader) <= bytes.size(); i += 8) {
      FrameHeader header;
      if (DecodeFrame(salt_, bytes.data() + i, &header))
        newest = std::max(newest.value_or(0), header.durable);
    }
    at += i;
  }
}

}  // namespace sluice::wal
