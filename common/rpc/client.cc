#include "common/rpc/client.h"

#include <google/protobuf/message.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/base/trace.h"
#include "common/metrics/metrics.h"
#include "common/rpc/leader_search.h"
#include "common/rpc/method.h"
#include "common/rpc/status.h"
#include "common/rpc/text.h"
#include "common/rpc/wait.h"

namespace sluice::rpc {
namespace {

// Longest wait before an attempt at another controller.
constexpr absl::Duration kOtherPeer = absl::Milliseconds(200);

// Makes one attempt.
absl::Status CallOnce(grpc::Channel* channel, const Method& method,
                      const google::protobuf::Message& request, google::protobuf::Message* response,
                      absl::Time deadline, Cancel* cancel, const Trace& trace) {
  grpc::ClientContext context;
  context.AddMetadata(kTraceHeader, FormatTraceparent(trace));
  if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));

  // Another thread may end the call through `cancel`.
  const int64_t id = cancel == nullptr ? 0 : cancel->AddCallback([&] { context.TryCancel(); });
  const grpc::internal::RpcMethod rpc_method(method.path.c_str(), nullptr,
                                             grpc::internal::RpcMethod::NORMAL_RPC);

  const grpc::Status status =
      grpc::internal::BlockingUnaryCall<google::protobuf::Message, google::protobuf::Message,
                                        google::protobuf::MessageLite,
                                        google::protobuf::MessageLite>(channel, rpc_method,
                                                                       &context, request, response);
  if (cancel != nullptr) cancel->RemoveCallback(id);
  return FromGrpcStatus(status);
}

// Whether another attempt may succeed. CANCELLED without our own token comes from a server that
// shuts down, so it counts like UNAVAILABLE.
bool IsPassing(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

// A standby refuses a call before it does anything.
bool MayRepeat(const Method& method, const absl::Status& status) {
  return method.repeat != Repeat::kNever || ReasonOf(status) == kStandby;
}

void CountAttempt(const Channel& channel, const Method& method, absl::Duration took) {
  if (channel.metrics() == nullptr) return;
  channel.metrics()
      ->AddHistogram("sluice_rpc_client_duration_seconds",
                     "Duration of outgoing calls. Each attempt counts by itself.",
                     metrics::RpcSeconds(), {{"method", method.name}})
      .Observe(absl::ToDoubleSeconds(took));
}

void CountRetry(const Channel& channel, const Method& method, const absl::Status& status) {
  if (channel.metrics() == nullptr) return;
  channel.metrics()
      ->AddCounter("sluice_rpc_client_retries_total", "Repeated attempts of outgoing calls.",
                   {{"method", method.name}, {"reason", absl::StatusCodeToString(status.code())}})
      .Add();
}

}  // namespace

absl::Status Call(const Channel& channel, const google::protobuf::Message& given,
                  google::protobuf::Message* response, const CallOptions& options) {
  // The request is copied only if its text must be repaired.
  std::unique_ptr<google::protobuf::Message> valid;
  if (!HasValidText(given)) {
    valid.reset(given.New());
    valid->CopyFrom(given);
    MakeTextValid(valid.get());
  }
  const google::protobuf::Message& request = valid == nullptr ? given : *valid;

  const Method& method = MethodOf(request.GetDescriptor());
  SLUICE_CHECK_MSG(response->GetDescriptor() == method.response,
                   absl::StrCat(method.name, " answers with another type of message"));

  const absl::Duration deadline =
      std::min(options.deadline > absl::ZeroDuration() ? options.deadline : method.deadline,
               method.max_deadline);
  // If there are several controllers, one that does not answer leaves time for the others.
  const absl::Duration give_up =
      options.give_up > absl::ZeroDuration() ? options.give_up : deadline * channel.peers();
  const absl::Time end = absl::Now() + give_up;

  const Trace trace = CurrentTrace().empty() ? MakeTrace() : CurrentTrace();
  Backoff backoff(options.backoff);
  while (true) {
    const absl::Time start = absl::Now();
    const Channel::Peer peer = channel.peer();
    const absl::Status status = CallOnce(peer.channel, method, request, response,
                                         std::min(start + deadline, end), options.cancel, trace);
    CountAttempt(channel, method, absl::Now() - start);

    if (status.ok()) return status;
    // The caller gets this error if this was the last attempt.
    const absl::Status error = Annotate(status, absl::StrCat(method.name, " at ", peer.name));
    if (options.cancel != nullptr && options.cancel->triggered())
      return Annotate(absl::CancelledError("cancelled"), method.name);
    if (!IsPassing(status)) return error;
    const bool moved = peer.MoveOn(status);
    if (!MayRepeat(method, status)) return error;

    absl::Duration wait = backoff.Next(DetailOf(status).retry_after);
    if (moved) wait = std::min(wait, kOtherPeer);
    // Another attempt would come too late.
    if (absl::Now() + wait >= end) return error;
    CountRetry(channel, method, status);
    if (WaitToRepeat(channel, wait, options.cancel))
      return Annotate(absl::CancelledError("cancelled"), method.name);
  }
}

}  // namespace sluice::rpc
