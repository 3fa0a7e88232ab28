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
#include "common/shm/block.h"

namespace google::protobuf {
class MessageLite;
}  // namespace google::protobuf
namespace grpc {
class ByteBuffer;
}  // namespace grpc

// The messages of Put, Get, Fetch and Score, as bytes: plain protobuf of the form
//   message XMessage { XHeader header = 1;  repeated SharedSlice shared = 3;  bytes payload = 15; }
// whose payload no generated code ever sees: it is sent as slices of the owner's memory, and
// received as slices of the network's, to be copied once into its place. In place of payload a
// message may name slices of memory that both sides map.
namespace sluice::rpc {

constexpr size_t kMaxHeaderBytes = 256 << 10;
constexpr size_t kMaxPayloadBytes = 4 << 20;
constexpr size_t kAimPayloadBytes = 1 << 20;
constexpr size_t kMaxSharedBytes = 64 << 20;  // Of one message, in shared memory.

// Bytes to send. With an owner they are borrowed, and the owner is kept until the network has them;
// without they are copied (right for small ones).
struct PayloadSlice {
  absl::string_view bytes;
  std::shared_ptr<const void> owner;
};

// 0A len header | 7A len payload. RESOURCE_EXHAUSTED: the header or payload is beyond the limits
// above (states both).
absl::StatusOr<grpc::ByteBuffer> EncodeFrame(const google::protobuf::MessageLite& header,
                                             absl::Span<const PayloadSlice> payload);

// The same with names of shared memory in place of payload.
absl::StatusOr<grpc::ByteBuffer> EncodeSharedFrame(const google::protobuf::MessageLite& header,
                                                   absl::Span<const shm::Slice> shared);

// A message received: its header's bytes, and its payload in slices that stay valid as long as the
// frame.
class Frame {
 public:
  absl::string_view header() const { return header_; }
  absl::Span<const absl::string_view> payload() const { return payload_; }
  size_t payload_bytes() const { return payload_bytes_; }
  // What the message names in place of payload; then payload() is empty until Resolve().
  absl::Span<const shm::Slice> shared() const { return shared_; }
  // Takes `views`, of the slices in shared() in order, as payload; `owner` keeps them.
  void Resolve(std::vector<absl::string_view> views, std::shared_ptr<const void> owner);

  // INVALID_ARGUMENT: the header's bytes are no such message.
  absl::Status ParseHeader(google::protobuf::MessageLite* header) const;

 private:
  friend absl::Status DecodeFrame(const grpc::ByteBuffer& message, Frame* frame);
  std::string header_;
  std::vector<absl::string_view> payload_;
  size_t payload_bytes_ = 0;
  std::vector<shm::Slice> shared_;
  std::shared_ptr<const void> memory_;
};

// Reads any protobuf encoding of such a message: header and payload in any order, unknown fields
// skipped, the last of repeated headers, all payloads one after the other.
// INVALID_ARGUMENT: a tag or length that cannot be read, a message cut short, a wrong wire type of
// field 1, 3 or 15, or both payload and names of shared memory.
// RESOURCE_EXHAUSTED: beyond the limits above.
absl::Status DecodeFrame(const grpc::ByteBuffer& message, Frame* frame);

// Walks a frame's payload, field by field in record order.
class PayloadReader {
 public:
  // `frame` outlives the reader.
  explicit PayloadReader(const Frame& frame)
      : slices_(frame.payload()), left_(frame.payload_bytes()) {}

  size_t left() const { return left_; }
  // Copies the next `bytes` to `to` and returns their CRC32C, computed in the same pass.
  // INVALID_ARGUMENT: fewer are left.
  absl::StatusOr<uint32_t> Copy(size_t bytes, char* to);
  // Passes over the next `bytes`, or as many as are left.
  void Skip(size_t bytes);

 private:
  // Hands the next `bytes`, no more than are left, to `use`, piece by piece.
  template <typename Use>
  void Take(size_t bytes, Use use);

  absl::Span<const absl::string_view> slices_;
  size_t offset_ = 0;  // In the first slice.
  size_t left_;
};

}  // namespace sluice::rpc
