#include "common/rpc/payload.h"

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "sluice/common/v1/common.pb.h"

namespace sluice::rpc {
namespace {

constexpr uint32_t kHeaderField = 1;
constexpr uint32_t kSharedField = 3;
constexpr uint32_t kPayloadField = 15;
constexpr uint32_t kBytesWire = 2;  // The wire type of bytes and sub-messages.
constexpr size_t kMaxSharedSliceBytes = 64;

absl::Status TooLarge(absl::string_view what, size_t bytes, size_t limit) {
  return Error(
      absl::StatusCode::kResourceExhausted, "TOO_LARGE",
      absl::StrCat(what, " of a stream message has ", bytes, " bytes; the limit is ", limit));
}

absl::Status Malformed(absl::string_view what) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_FRAME",
               absl::StrCat("stream message: ", what));
}

void AppendVarint(uint64_t value, std::string* to) {
  while (value >= 0x80) {
    to->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  to->push_back(static_cast<char>(value));
}

void AppendPrefix(uint32_t field, size_t length, std::string* to) {
  AppendVarint(field << 3 | kBytesWire, to);
  AppendVarint(length, to);
}

absl::Status AppendHeader(const google::protobuf::MessageLite& header, std::string* to) {
  const size_t bytes = header.ByteSizeLong();
  if (bytes > kMaxHeaderBytes) return TooLarge("the header", bytes, kMaxHeaderBytes);
  AppendPrefix(kHeaderField, bytes, to);
  header.AppendToString(to);
  return absl::OkStatus();
}

absl::Status AddShared(const std::string& bytes, std::vector<shm::Slice>* to, size_t* total) {
  common::v1::SharedSlice slice;
  if (!slice.ParseFromString(bytes)) return Malformed("a SharedSlice in it cannot be parsed");
  if (slice.length() > kMaxSharedBytes - *total)
    return TooLarge("the shared memory", *total + slice.length(), kMaxSharedBytes);
  *total += slice.length();
  to->push_back(
      {slice.segment(), slice.block(), slice.offset(), slice.length(), slice.generation()});
  return absl::OkStatus();
}

// Slices smaller than this are copied even if they have an owner: a borrowed slice of its own costs
// more.
constexpr size_t kCopyBelow = 4096;

// Makes a slice of the caller's memory. gRPC frees the copy of the owner when it has sent the
// bytes.
grpc::Slice Borrow(const PayloadSlice& slice) {
  auto* owner = new std::shared_ptr<const void>(slice.owner);
  return grpc::Slice(
      const_cast<char*>(slice.bytes.data()), slice.bytes.size(),
      [](void* held) { delete static_cast<std::shared_ptr<const void>*>(held); }, owner);
}

// Reads bytes that lie in several slices, from front to back.
class Input {
 public:
  explicit Input(absl::Span<const absl::string_view> slices) : slices_(slices) {
    for (absl::string_view slice : slices) left_ += slice.size();
  }
  size_t left() const { return left_; }

  // Returns false if the bytes end within the number, or if it is longer than 10 bytes.
  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      char byte = 0;
      if (!Consume(1, [&](absl::string_view piece) { byte = piece[0]; })) return false;
      // Seven bits per byte, lowest first. Of the tenth byte only one bit fits.
      *value |= static_cast<uint64_t>(byte & 0x7f) << std::min(shift, 63);
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }

  // Passes the next `bytes` bytes to `use`, piece by piece. Returns false, and passes nothing, if
  // fewer are left.
  template <typename Use>
  bool Consume(uint64_t bytes, Use use) {
    if (bytes > left_) return false;
    left_ -= bytes;
    while (bytes > 0) {
      const absl::string_view piece = slices_.front().substr(offset_, bytes);
      if (!piece.empty()) use(piece);
      bytes -= piece.size();
      offset_ += piece.size();
      if (offset_ == slices_.front().size()) {
        slices_.remove_prefix(1);
        offset_ = 0;
      }
    }
    return true;
  }

 private:
  absl::Span<const absl::string_view> slices_;
  size_t offset_ = 0;  // In slices_.front().
  size_t left_ = 0;
};

// Skips the value of an unknown field. Groups, a deprecated encoding, are refused.
bool SkipField(uint64_t wire, Input* input) {
  const auto ignore = [](absl::string_view) {};
  uint64_t value = 0;
  switch (wire) {
    case 0: return input->ReadVarint(&value);
    case 1: return input->Consume(8, ignore);
    case 2: return input->ReadVarint(&value) && input->Consume(value, ignore);
    case 5: return input->Consume(4, ignore);
    default: return false;
  }
}

}  // namespace

absl::StatusOr<grpc::ByteBuffer> EncodeFrame(const google::protobuf::MessageLite& header,
                                             absl::Span<const PayloadSlice> payload) {
  size_t payload_bytes = 0;
  for (const PayloadSlice& slice : payload) payload_bytes += slice.bytes.size();
  if (payload_bytes > kMaxPayloadBytes)
    return TooLarge("the payload", payload_bytes, kMaxPayloadBytes);

  std::string own;  // Copied bytes that precede the next borrowed slice.
  SLUICE_RETURN_IF_ERROR(AppendHeader(header, &own));
  if (payload_bytes > 0) AppendPrefix(kPayloadField, payload_bytes, &own);

  std::vector<grpc::Slice> slices;
  for (const PayloadSlice& slice : payload) {
    if (slice.owner == nullptr || slice.bytes.size() < kCopyBelow) {
      own.append(slice.bytes.data(), slice.bytes.size());
      continue;
    }
    if (!own.empty()) slices.emplace_back(own);
    own.clear();
    slices.push_back(Borrow(slice));
  }

  if (!own.empty()) slices.emplace_back(own);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::StatusOr<grpc::ByteBuffer> EncodeSharedFrame(const google::protobuf::MessageLite& header,
                                                   absl::Span<const shm::Slice> shared) {
  std::string own;
  SLUICE_RETURN_IF_ERROR(AppendHeader(header, &own));
  uint64_t total = 0;
  for (const shm::Slice& slice : shared) {
    total += slice.length;
    common::v1::SharedSlice name;
    name.set_segment(slice.segment);
    name.set_block(slice.block);
    name.set_offset(slice.offset);
    name.set_length(slice.length);
    name.set_generation(slice.generation);
    AppendPrefix(kSharedField, name.ByteSizeLong(), &own);
    name.AppendToString(&own);
  }
  if (total > kMaxSharedBytes) return TooLarge("the shared memory", total, kMaxSharedBytes);
  const grpc::Slice slice(own);
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status DecodeFrame(const grpc::ByteBuffer& message, Frame* frame) {
  auto slices = std::make_shared<std::vector<grpc::Slice>>();
  if (message.Valid() && !message.Dump(slices.get()).ok())
    return Malformed("its bytes cannot be read");
  std::vector<absl::string_view> views;
  for (const grpc::Slice& slice : *slices) {
    if (slice.size() > 0)
      views.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  *frame = Frame();
  // The frame keeps the network's slices: its payload points into them. The header is copied.
  frame->memory_ = slices;

  size_t shared_bytes = 0;
  Input input(views);
  while (input.left() > 0) {
    uint64_t tag = 0, length = 0;
    if (!input.ReadVarint(&tag) || tag >> 3 == 0 || tag > UINT32_MAX)
      return Malformed("a tag cannot be read");
    const uint64_t field = tag >> 3, wire = tag & 7;
    if (field != kHeaderField && field != kSharedField && field != kPayloadField) {
      if (!SkipField(wire, &input))
        return Malformed(absl::StrCat("field ", field, " cannot be skipped"));
      continue;
    }

    if (wire != kBytesWire)
      return Malformed(absl::StrCat("field ", field, " has wire type ", wire, ", not 2"));
    if (!input.ReadVarint(&length) || length > input.left())
      return Malformed(absl::StrCat("field ", field, " is cut short"));

    if (field == kHeaderField) {
      if (length > kMaxHeaderBytes) return TooLarge("the header", length, kMaxHeaderBytes);
      frame->header_.clear();
      input.Consume(length, [&](absl::string_view piece) {
        frame->header_.append(piece.data(), piece.size());
      });
    } else if (field == kSharedField) {
      std::string bytes;
      // A SharedSlice is always shorter.
      if (length > kMaxSharedSliceBytes) {
        return Malformed(absl::StrCat("a SharedSlice in it has ", length, " bytes; the limit is ",
                                      kMaxSharedSliceBytes));
      }
      input.Consume(length,
                    [&](absl::string_view piece) { bytes.append(piece.data(), piece.size()); });
      SLUICE_RETURN_IF_ERROR(AddShared(bytes, &frame->shared_, &shared_bytes));
    } else {
      frame->payload_bytes_ += length;
      if (frame->payload_bytes_ > kMaxPayloadBytes)
        return TooLarge("the payload", frame->payload_bytes_, kMaxPayloadBytes);
      input.Consume(length, [&](absl::string_view piece) { frame->payload_.push_back(piece); });
    }
  }

  if (!frame->shared_.empty() && frame->payload_bytes_ > 0)
    return Malformed("it has both a payload and slices of shared memory");
  return absl::OkStatus();
}

void Frame::Resolve(std::vector<absl::string_view> views, std::shared_ptr<const void> owner) {
  payload_ = std::move(views);
  memory_ = std::move(owner);
  payload_bytes_ = 0;
  for (absl::string_view view : payload_) payload_bytes_ += view.size();
}

absl::Status Frame::ParseHeader(google::protobuf::MessageLite* header) const {
  if (header->ParseFromString(header_)) return absl::OkStatus();
  return Malformed(absl::StrCat("its header is not a ", header->GetTypeName()));
}

template <typename Use>
void PayloadReader::Consume(size_t bytes, Use use) {
  SLUICE_CHECK(bytes <= left_);
  left_ -= bytes;
  while (bytes > 0) {
    const absl::string_view piece = slices_.front().substr(offset_, bytes);
    use(piece);
    bytes -= piece.size();
    offset_ += piece.size();
    if (offset_ == slices_.front().size()) {
      slices_.remove_prefix(1);
      offset_ = 0;
    }
  }
}

absl::StatusOr<uint32_t> PayloadReader::Copy(size_t bytes, char* to) {
  if (bytes > left_) {
    return Malformed(
        absl::StrCat("its fields need ", bytes, " more bytes of payload; ", left_, " are left"));
  }
  uint32_t crc = 0;
  Consume(bytes, [&](absl::string_view piece) {
    crc = Crc32cCopy(piece, to, crc);
    to += piece.size();
  });
  return crc;
}

void PayloadReader::Skip(size_t bytes) {
  Consume(std::min(bytes, left_), [](absl::string_view) {});
}

}  // namespace sluice::rpc
