#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace google::protobuf {
class MessageLite;
}  // namespace google::protobuf
namespace grpc {
class ByteBuffer;
}  // namespace grpc

// The messages of Put, Get, Fetch and Score, as bytes: plain protobuf of the form
//   message XMessage { XHeader header = 1;  bytes payload = 15; }
// whose payload no generated code ever sees: it is sent as slices of the owner's memory, and received as slices of the
// network's, to be copied once into its place.
namespace sluice::rpc {

constexpr size_t kMaxHeaderBytes = 256 << 10;
constexpr size_t kMaxPayloadBytes = 4 << 20;
constexpr size_t kAimPayloadBytes = 1 << 20;

// Bytes to send. With an owner they are borrowed, and the owner is kept until the network has them; without they are
// copied (right for small ones).
struct PayloadSlice {
  absl::string_view bytes;
  std::shared_ptr<const void> owner;
};

// 0A len header | 7A len payload. RESOURCE_EXHAUSTED: the header or payload is beyond the limits above (states both).
absl::StatusOr<grpc::ByteBuffer> EncodeFrame(const google::protobuf::MessageLite& header, absl::Span<const PayloadSlice> payload);

// A message received: its header's bytes, and its payload in slices that stay valid as long as the frame.
class Frame {
 public:
  absl::string_view header() const { return header_; }
  absl::Span<const absl::string_view> payload() const { return payload_; }
  size_t payload_bytes() const { return payload_bytes_; }

  // INVALID_ARGUMENT: the header's bytes are no such message.
  absl::Status ParseHeader(google::protobuf::MessageLite* header) const;

 private:
  friend absl::Status DecodeFrame(const grpc::ByteBuffer& message, Frame* frame);
  std::string header_;
  std::vector<absl::string_view> payload_;
  size_t payload_bytes_ = 0;
  std::shared_ptr<const void> memory_;
};

// Reads any protobuf encoding of such a message: header and payload in any order, unknown fields skipped, the last of
// repeated headers, all payloads one after the other.
// INVALID_ARGUMENT: a tag or length that cannot be read, a message cut short, or a wrong wire type of field 1 or 15.
// RESOURCE_EXHAUSTED: beyond the limits above.
absl::Status DecodeFrame(const grpc::ByteBuffer& message, Frame* frame);

// Walks a frame's payload, field by field in record order.
class PayloadReader {
 public:
  // `frame` outlives the reader.
  explicit PayloadReader(const Frame& frame) : slices_(frame.payload()), left_(frame.payload_bytes()) {}

  size_t left() const { return left_; }
  // Copies the next `bytes` to `to` and returns their CRC32C, computed in the same pass.
  // INVALID_ARGUMENT: fewer are left.
  absl::StatusOr<uint32_t> Copy(size_t bytes, char* to);

 private:
  absl::Span<const absl::string_view> slices_;
  size_t offset_ = 0;  // In the first slice.
  size_t left_;
};

}  // namespace sluice::rpc
