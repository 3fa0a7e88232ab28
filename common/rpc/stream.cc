#include "common/rpc/stream.h"

#include <google/protobuf/message.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/sync_stream.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/base/trace.h"
#include "common/rpc/method.h"
#include "common/rpc/status.h"
#include "common/rpc/text.h"

namespace sluice::rpc {
namespace {
using RawStream = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;
}  // namespace

struct ClientStream::Impl {
  const Method& method;
  const Channel::Peer peer;
  rpc::Cancel* const cancel;
  grpc::ClientContext context;
  std::unique_ptr<RawStream> stream;
  int64_t cancel_id = 0;
  absl::Status parse_error;  // Why a message could not be parsed. Set by the reading thread.
  // The call is over, and has a status of its own: a read or a write has failed.
  std::atomic<bool> over = false;
  bool finished = false;

  bool Write(const grpc::ByteBuffer& buffer) {
    if (stream->Write(buffer)) return true;
    over = true;
    return false;
  }
};

ClientStream::ClientStream(const Channel& channel, const google::protobuf::Descriptor& request,
                           rpc::Cancel* cancel, absl::Duration deadline)
    : impl_(new Impl{MethodOf(&request), channel.peer(), cancel}) {
  if (deadline != absl::InfiniteDuration())
    impl_->context.set_deadline(absl::ToChronoTime(absl::Now() + deadline));

  const Trace& trace = CurrentTrace();
  impl_->context.AddMetadata(kTraceHeader, FormatTraceparent(trace.empty() ? MakeTrace() : trace));

  // Create() waits for the connection, and a cancel must end that wait too.
  if (cancel != nullptr)
    impl_->cancel_id = cancel->AddCallback([impl = impl_.get()] { impl->context.TryCancel(); });

  // On the wire, a stream in one direction is a stream in both directions that carries only one
  // message on the other side.
  const grpc::internal::RpcMethod method(impl_->method.path.c_str(), nullptr,
                                         grpc::internal::RpcMethod::BIDI_STREAMING);
  impl_->stream.reset(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          impl_->peer.channel, method, &impl_->context));
}

ClientStream::~ClientStream() {
  if (impl_->cancel != nullptr) impl_->cancel->RemoveCallback(impl_->cancel_id);
  if (impl_->finished) return;
  // To cancel a call that is over would replace its status, which says where the next one goes.
  if (!impl_->over) impl_->context.TryCancel();
  (void)Finish();
}

bool ClientStream::Write(const google::protobuf::Message& message) {
  if (!HasValidText(message)) {
    const std::unique_ptr<google::protobuf::Message> valid(message.New());
    valid->CopyFrom(message);
    MakeTextValid(valid.get());
    return Write(*valid);
  }

  grpc::ByteBuffer buffer;
  bool own = false;
  const grpc::Status status =
      grpc::SerializationTraits<google::protobuf::Message>::Serialize(message, &buffer, &own);
  SLUICE_CHECK_MSG(status.ok(), status.error_message());
  return impl_->Write(buffer);
}

absl::Status ClientStream::WriteFrame(const google::protobuf::MessageLite& header,
                                      absl::Span<const PayloadSlice> payload) {
  SLUICE_ASSIGN_OR_RETURN(const grpc::ByteBuffer buffer, EncodeFrame(header, payload));
  if (impl_->Write(buffer)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(impl_->method.name, " at ", impl_->peer.name, ": the stream is broken"));
}

absl::Status ClientStream::WriteSharedFrame(const google::protobuf::MessageLite& header,
                                            absl::Span<const shm::Slice> shared) {
  SLUICE_ASSIGN_OR_RETURN(const grpc::ByteBuffer buffer, EncodeSharedFrame(header, shared));
  if (impl_->Write(buffer)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(impl_->method.name, " at ", impl_->peer.name, ": the stream is broken"));
}

void ClientStream::WritesDone() { impl_->stream->WritesDone(); }

bool ClientStream::Read(google::protobuf::Message* message) {
  grpc::ByteBuffer buffer;
  if (!impl_->stream->Read(&buffer)) {
    impl_->over = true;
    return false;
  }
  const grpc::Status status =
      grpc::SerializationTraits<google::protobuf::Message>::Deserialize(&buffer, message);
  if (status.ok()) return true;
  impl_->parse_error = FromGrpcStatus(status);
  impl_->context.TryCancel();
  return false;
}

bool ClientStream::ReadFrame(Frame* frame) {
  grpc::ByteBuffer buffer;
  if (!impl_->stream->Read(&buffer)) {
    impl_->over = true;
    return false;
  }
  impl_->parse_error = DecodeFrame(buffer, frame);
  if (impl_->parse_error.ok()) return true;
  impl_->context.TryCancel();
  return false;
}

void ClientStream::TryCancel() { impl_->context.TryCancel(); }

absl::Status ClientStream::Finish() {
  SLUICE_CHECK(!impl_->finished);
  impl_->finished = true;
  // gRPC's synchronous stream aborts if Finish() is called before all messages are read.
  for (grpc::ByteBuffer rest; impl_->stream->Read(&rest);) {
  }
  const absl::Status status = FromGrpcStatus(impl_->stream->Finish());
  if (absl::IsUnavailable(status)) (void)impl_->peer.MoveOn(status);
  return Annotate(impl_->parse_error.ok() ? status : impl_->parse_error,
                  absl::StrCat(impl_->method.name, " at ", impl_->peer.name));
}

}  // namespace sluice::rpc
