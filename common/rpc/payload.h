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

// The messages of Put, Get, Fetch and Score as bytes. They are plain protobuf of the form
//   message XMessage { XHeader header = 1;  repeated SharedSlice shared = 3;  bytes payload = 15; }
// but the payload bypasses the generated code, to save copies. It is sent as slices of the owner's
// memory and received as slices of the network's memory, to be copied once to its place. Instead of
// a payload a message may name slices of memory that both processes map.
namespace sluice::rpc {

constexpr size_t kMaxHeaderBytes = 256 << 10;
constexpr size_t kMaxPayloadBytes = 4 << 20;
constexpr size_t kTargetPayloadBytes = 1 << 20;  // A sender fills messages up to about this.
constexpr size_t kMaxSharedBytes = 64 << 20;     // Shared memory that one message may name.

// Bytes to send. With an owner, they are borrowed, and the owner is kept until the network has read
// them. Without an owner they are copied, which suits small slices.
struct PayloadSlice {
  absl::string_view bytes;
  std::shared_ptr<const void> owner;
};

// Encodes a message. Its bytes are: 0x0A (tag of field 1), length, header, 0x7A (tag of field 15),
// length, payload. An empty payload is left out.
// RESOURCE_EXHAUSTED TOO_LARGE: the header or the payload exceeds a limit above; the message states
// both numbers.
absl::StatusOr<grpc::ByteBuffer> EncodeFrame(const google::protobuf::MessageLite& header,
                                             absl::Span<const PayloadSlice> payload);

// The same with slices of shared memory instead of a payload.
absl::StatusOr<grpc::ByteBuffer> EncodeSharedFrame(const google::protobuf::MessageLite& header,
                                                   absl::Span<const shm::Slice> shared);

// A received message: the bytes of its header, and its payload in slices that stay valid as long as
// the frame. Not thread-safe.
class Frame {
 public:
  absl::string_view header() const { return header_; }
  absl::Span<const absl::string_view> payload() const { return payload_; }
  size_t payload_bytes() const { return payload_bytes_; }
  // The slices of shared memory that the message names instead of a payload. While there are some,
  // payload() is empty until Resolve() is called.
  absl::Span<const shm::Slice> shared() const { return shared_; }
  // Sets the payload to `views`, the bytes of the slices in shared(), in order. The frame keeps
  // `owner`, which keeps the memory alive.
  void Resolve(std::vector<absl::string_view> views, std::shared_ptr<const void> owner);

  // INVALID_ARGUMENT BAD_FRAME: the header's bytes are not such a message.
  absl::Status ParseHeader(google::protobuf::MessageLite* header) const;

 private:
  friend absl::Status DecodeFrame(const grpc::ByteBuffer& message, Frame* frame);
  std::string header_;
  std::vector<absl::string_view> payload_;
  size_t payload_bytes_ = 0;
  std::vector<shm::Slice> shared_;
  std::shared_ptr<const void> memory_;
};

// Decodes a message in any protobuf encoding: header and payload may come in any order, unknown
// fields are skipped, of several headers the last counts, and several payloads are joined.
// INVALID_ARGUMENT BAD_FRAME: a tag or length cannot be read, the message is cut short, field 1, 3
// or 15 has a wrong wire type, an unknown field cannot be skipped, a SharedSlice is too long or
// cannot be parsed, or the message has both a payload and slices of shared memory.
// RESOURCE_EXHAUSTED TOO_LARGE: a limit above is exceeded.
absl::Status DecodeFrame(const grpc::ByteBuffer& message, Frame* frame);

// Reads the payload of a frame from front to back. The caller knows the fields and their sizes from
// the header.
class PayloadReader {
 public:
  // `frame` outlives the reader.
  explicit PayloadReader(const Frame& frame)
      : slices_(frame.payload()), left_(frame.payload_bytes()) {}

  // Bytes that are not read yet.
  size_t left() const { return left_; }
  // Copies the next `bytes` bytes to `to` and returns their CRC-32C, computed in the same pass.
  // INVALID_ARGUMENT BAD_FRAME: fewer bytes are left.
  absl::StatusOr<uint32_t> Copy(size_t bytes, char* to);
  // Skips the next `bytes` bytes, or all that are left if there are fewer.
  void Skip(size_t bytes);

 private:
  // Passes the next `bytes` bytes to `use`, piece by piece. `bytes` <= left().
  template <typename Use>
  void Consume(size_t bytes, Use use);

  absl::Span<const absl::string_view> slices_;
  size_t offset_ = 0;  // In slices_.front().
  size_t left_;
};

}  // namespace sluice::rpc
