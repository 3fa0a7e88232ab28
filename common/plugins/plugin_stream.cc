#include "common/plugins/plugin_stream.h"

#include <grpcpp/channel.h>
#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/plugins/plugin_calls.h"
#include "common/plugins/plugin_messages.h"
#include "common/rpc/convert.h"
#include "sluice/plugin/v1/plugin.grpc.pb.h"

namespace sluice {
namespace {

using plugin::v1::RewardPlugin;
using plugin::v1::ScoreRequest;
using plugin::v1::ScoreResponse;

constexpr size_t kMaxDefault = 4 << 20;  // Of a message to a server of gRPC, by default.

std::string StatusOfServer(const grpc::Status& status) {
  const auto code = absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
  return Utf8Lossy(absl::StrCat(code, ": ", Utf8Prefix(status.error_message(), 1000)));
}

absl::Status WhyEnded(const grpc::Status& status) {
  const std::string text = absl::StrCat("its stream ended with ", StatusOfServer(status));
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return Error(absl::StatusCode::kUnavailable, "PLUGIN_GONE",
                   "its server has ended the stream");
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
      return Error(absl::StatusCode::kUnavailable, "PLUGIN_DIED", text);
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return Error(absl::StatusCode::kAborted, "PLUGIN_TOO_LARGE", text);
    default: return Error(absl::StatusCode::kAborted, "PLUGIN_DIED", text);
  }
}

class PluginStream : public PluginInstance,
                     private grpc::ClientBidiReactor<ScoreRequest, ScoreResponse> {
 public:
  PluginStream(std::shared_ptr<grpc::Channel> channel, plugin::v1::DescribeRequest hello)
      : channel_(std::move(channel)),
        stub_(RewardPlugin::NewStub(channel_)),
        hello_(std::move(hello)) {}

  ~PluginStream() override {
    End(absl::CancelledError("the plug-in is stopped"));
    MutexLock lock(&mu_);
    while (opened_ && !done_) changed_.Wait(&mu_);
  }

  absl::Status Describe(absl::Duration timeout) override {
    SLUICE_ASSIGN_OR_RETURN(description_,
                            DescribePluginServer(channel_, hello_, timeout, &describe_context_));
    MutexLock lock(&mu_);
    opened_ = true;
    stub_->async()->Score(&context_, this);
    AddHold();  // Other threads write. Close() removes it.
    StartRead(&incoming_);
    StartCall();
    return absl::OkStatus();
  }

  const PluginDescription& description() const override { return description_; }

  absl::StatusOr<std::vector<PluginResult>> Call(const std::vector<nlohmann::json>& items,
                                                 absl::Duration timeout) override {
    const absl::Duration deadline = Clock::Real()->Monotonic() + timeout;
    SLUICE_ASSIGN_OR_RETURN(const uint64_t id, calls_.Begin(items.size()));
    ScoreRequest request;
    request.set_id(id);
    *request.mutable_deadline() = rpc::ToProto(timeout);
    request.set_job(hello_.job());
    request.set_config(hello_.config());
    for (const nlohmann::json& item : items) *request.add_items() = PluginItemToProto(item);
    const size_t bytes = request.ByteSizeLong();
    if (bytes > kMaxPluginLine) {
      calls_.Forget(id);
      return TooLargeForPlugin(bytes);
    }
    Send(std::move(request));

    auto results = calls_.Await(id, deadline);
    if (ReasonOf(results.status()) == "PLUGIN_TOO_LARGE") {
      const absl::string_view words = results.status().message();
      if (bytes <= kMaxDefault) return Error(absl::StatusCode::kAborted, "PLUGIN_DIED", words);
      return Error(absl::StatusCode::kAborted, "PLUGIN_TOO_LARGE",
                   absl::StrCat("the server takes no message of ", bytes, " bytes (", words,
                                "); have it take ", kMaxPluginLine));
    }
    if (!absl::IsDeadlineExceeded(results.status())) return results;
    End(Error(absl::StatusCode::kUnavailable, "PLUGIN_GONE",
              "another call of the plug-in had no answer in time, so the stream was ended"));
    return Error(absl::StatusCode::kDeadlineExceeded, "PLUGIN_DEADLINE",
                 absl::StrCat("the plug-in ", description_.name, " gave no answer in ",
                              absl::FormatDuration(timeout), ", and its stream was ended"));
  }

  absl::Status status() const override { return calls_.status(); }

  void End(absl::Status why) override {
    calls_.End(std::move(why));
    describe_context_.TryCancel();
    context_.TryCancel();
    Close();
  }

 private:
  void Send(ScoreRequest request) {
    {
      MutexLock lock(&mu_);
      if (!closing_) {
        outgoing_.push_back(std::move(request));
        if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
        return;
      }
    }
    // It ended before this call, which has no part in it. OnDone() comes too late to say so.
    calls_.End(Error(absl::StatusCode::kUnavailable, "PLUGIN_GONE", "the stream has ended"));
  }

  // No write begins after this.
  void Close() {
    MutexLock lock(&mu_);
    if (!opened_ || closing_) return;
    closing_ = true;
    RemoveHold();
  }

  absl::Status Take(const ScoreResponse& response) {
    if (response.version() == description_.version)
      return calls_.Take(PluginAnswerFromProto(response));
    const std::string text =
        absl::StrCat("it answered as version \"", response.version(),
                     "\", but described itself as \"", description_.version, "\"");
    // Another version may have come in its place. Without any version it is not to blame on that.
    if (response.version().empty()) return absl::InvalidArgumentError(text);
    return Error(absl::StatusCode::kUnavailable, "PLUGIN_GONE", text);
  }

  // What grpc::ClientBidiReactor calls, on threads of gRPC.

  void OnReadDone(bool ok) override {
    if (!ok) return Close();  // OnDone() says why.
    const absl::Status taken = Take(incoming_);
    if (taken.ok()) return StartRead(&incoming_);
    End(ReasonOf(taken) == "PLUGIN_GONE"
            ? taken
            : Error(absl::StatusCode::kAborted, "PLUGIN_DIED", Utf8Lossy(taken.message())));
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Close();
    MutexLock lock(&mu_);
    outgoing_.pop_front();
    if (!outgoing_.empty() && !closing_) StartWrite(&outgoing_.front());
  }

  void OnDone(const grpc::Status& status) override {
    calls_.End(WhyEnded(status));
    MutexLock lock(&mu_);
    done_ = true;
    changed_.NotifyAll();
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<RewardPlugin::Stub> stub_;
  const plugin::v1::DescribeRequest hello_;
  PluginDescription description_;  // Constant once described.
  grpc::ClientContext describe_context_, context_;
  PluginCalls calls_;
  ScoreResponse incoming_;  // Of the read under way.

  Mutex mu_;
  CondVar changed_;  // It is done.
  // The front is being written. It is a deque, so that the front stays in its place.
  std::deque<ScoreRequest> outgoing_ ABSL_GUARDED_BY(mu_);
  bool opened_ ABSL_GUARDED_BY(mu_) = false;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;  // gRPC uses this object no more.
};

}  // namespace

absl::StatusOr<PluginDescription> DescribePluginServer(
    const std::shared_ptr<grpc::Channel>& channel, const plugin::v1::DescribeRequest& request,
    absl::Duration timeout, grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(timeout));
  plugin::v1::DescribeResponse response;
  const grpc::Status status = RewardPlugin::NewStub(channel)->Describe(context, request, &response);
  const auto fail = [](absl::string_view reason, const auto&... parts) {
    return Error(absl::StatusCode::kUnavailable, reason, absl::StrCat(parts...));
  };
  switch (status.error_code()) {
    case grpc::StatusCode::OK: break;
    case grpc::StatusCode::UNAVAILABLE:
      return fail("PLUGIN_UNREACHABLE", "it cannot be reached: ", StatusOfServer(status));
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      // A call that waits for the connection ends in the same way as one that waits for its answer.
      if (channel->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_READY)
        return fail("PLUGIN_UNREACHABLE", "it cannot be reached: ", StatusOfServer(status));
      return fail("PLUGIN_START", "it gave no description of itself in time");
    default: return fail("PLUGIN_START", "it did not describe itself: ", StatusOfServer(status));
  }
  absl::StatusOr<PluginDescription> description = PluginDescriptionFromProto(response);
  if (!description.ok()) return fail("PLUGIN_START", Utf8Lossy(description.status().message()));
  return description;
}

std::shared_ptr<PluginInstance> MakePluginStream(std::shared_ptr<grpc::Channel> channel,
                                                 plugin::v1::DescribeRequest hello) {
  return std::make_shared<PluginStream>(std::move(channel), std::move(hello));
}

}  // namespace sluice
