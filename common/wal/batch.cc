#include "common/wal/batch.h"

#include "common/base/digest.h"
#include "common/base/status.h"

namespace sluice::wal {
namespace {
// Below this size, copying a part is cheaper than one more entry in a vectored write.
constexpr size_t kCopyBelow = 8192;

FrameHeader MakeHeader(const Record& record) {
  FrameHeader header{.type = record.type, .head_bytes = static_cast<uint32_t>(record.head.size())};
  for (const Part& part : record.payload) header.payload_bytes += part.bytes.size();
  SLUICE_CHECK_MSG(record.head.size() <= kMaxHeadBytes && header.payload_bytes <= kMaxPayloadBytes,
                   "a record exceeds the limits of the log");
  return header;
}
}  // namespace

uint64_t FrameBytes(const Record& record) { return MakeHeader(record).frame_bytes(); }

void Batch::AppendCopy(absl::string_view bytes) {
  if (pieces_.empty() || pieces_.back().data != nullptr)
    pieces_.push_back({nullptr, copies_.size(), 0});
  pieces_.back().size += bytes.size();
  copies_.append(bytes.data(), bytes.size());
  bytes_ += bytes.size();
}

void Batch::AddHeader(FrameHeader header) {
  SealFrame(salt_, &header);
  AppendCopy({reinterpret_cast<const char*>(&header), sizeof(header)});
}

void Batch::AddRecord(Position position, Position durable, const Record& record) {
  FrameHeader header = MakeHeader(record);
  header.position = position;
  header.durable = durable;
  header.head_crc = Crc32c(record.head);

  // The checksum of the payload is combined from those of its parts, so that the bytes are not read
  // again.
  bool first = true;
  for (const Part& part : record.payload) {
    header.payload_crc =
        first ? part.crc32c : Crc32cConcat(header.payload_crc, part.crc32c, part.bytes.size());
    first = false;
  }

  AddHeader(header);
  AppendCopy(record.head);
  for (const Part& part : record.payload) {
    if (part.bytes.size() < kCopyBelow) {
      AppendCopy(part.bytes);
    } else {
      pieces_.push_back({part.bytes.data(), 0, part.bytes.size()});
      bytes_ += part.bytes.size();
    }
  }

  static constexpr char kZeros[8] = {};
  AppendCopy({kZeros, (8 - bytes_ % 8) % 8});
}

void Batch::AddMark(Position position) {
  AddHeader({.kind = FrameKind::kMark, .position = position, .durable = position});
}

std::vector<absl::string_view> Batch::Pieces() const {
  std::vector<absl::string_view> pieces;
  pieces.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    pieces.push_back(piece.data != nullptr
                         ? absl::string_view(piece.data, piece.size)
                         : absl::string_view(copies_).substr(piece.offset, piece.size));
  }
  return pieces;
}

void Batch::Clear() {
  copies_.clear();
  pieces_.clear();
  bytes_ = 0;
}

}  // namespace sluice::wal
