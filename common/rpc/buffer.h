#pragma once

#include <google/protobuf/message_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"
#include "common/rpc/status.h"

// Converts the plain messages of raw methods (server_stream.h) to and from bytes.
namespace sluice::rpc {

inline grpc::ByteBuffer ToBuffer(const google::protobuf::MessageLite& message) {
  grpc::ByteBuffer buffer;
  bool own = false;
  (void)grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::MessageLite>(
      message, &buffer, &own);
  return buffer;
}

// INVALID_ARGUMENT or INTERNAL: the bytes are not such a message. `buffer` is empty afterwards.
inline absl::Status FromBuffer(grpc::ByteBuffer* buffer, google::protobuf::MessageLite* message) {
  return FromGrpcStatus(
      grpc::GenericDeserialize<grpc::ProtoBufferReader, google::protobuf::MessageLite>(buffer,
                                                                                       message));
}

}  // namespace sluice::rpc
