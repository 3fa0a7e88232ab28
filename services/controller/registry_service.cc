#include "services/controller/registry_service.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/rpc/access.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "services/controller/translate.h"

namespace sluice::controller {

namespace {

// A daemon registers itself, under the role of its certificate.
absl::Status CheckSelf(const grpc::ServerContextBase& context,
                       const registry::v1::RegisterRequest& request) {
  SLUICE_RETURN_IF_ERROR(rpc::CheckSpeaksFor(context, request.daemon()));
  const std::optional<rpc::Identity> caller = rpc::CallerOf(context);
  const auto role = static_cast<rpc::Role>(request.role());
  if (!caller || caller->role == role) return absl::OkStatus();
  return Error(
      absl::StatusCode::kPermissionDenied, "WRONG_ROLE",
      absl::StrCat(rpc::DescribeIdentity(*caller), " cannot register as a ", rpc::RoleName(role)));
}

// While the store is away nothing can be answered. The daemon then looks for another controller.
absl::Status CheckStore(const Loop& loop) {
  if (!loop.away()) return absl::OkStatus();
  return ErrorWith(
      absl::StatusCode::kUnavailable,
      {.reason = "STORE_AWAY", .catalogue = "SLUICE-META-0005", .retry_after = absl::Seconds(1)},
      "the job store does not answer");
}

}  // namespace

using registry::v1::HeartbeatRequest;
using registry::v1::HeartbeatResponse;

grpc::ServerUnaryReactor* RegistryService::Register(grpc::CallbackServerContext* context,
                                                    const registry::v1::RegisterRequest* request,
                                                    registry::v1::RegisterResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::StatusOr<RegisterInput> input = FromProto(*request);
  if (const absl::Status self = CheckSelf(*context, *request); !self.ok()) input = self;
  else if (const absl::Status store = CheckStore(*loop_); !store.ok()) input = store;
  if (!input.ok()) {
    reactor->Finish(rpc::ToGrpcStatus(input.status()));
    return reactor;
  }
  auto output = std::make_shared<absl::StatusOr<RegisterOutput>>(absl::UnknownError("not done"));
  loop_->Post([input = *std::move(input), output](
                  Controller& core, Instant now) { *output = core.Register(now, input); },
              [reactor, response, output, daemon = request->daemon()](Controller&) {
                if (output->ok() && !(*output)->unknown_jobs.empty()) {
                  log::Error("unknown_jobs",
                             {{"worker", daemon},
                              {"jobs", absl::StrJoin((*output)->unknown_jobs, ",")},
                              {"next",
                               "the daemon works on and gets no other work; if the store has lost "
                               "these jobs, restore it with `sluice meta restore`, or give them up "
                               "with `sluice daemon drain`"}});
                }
                if (output->ok()) {
                  response->set_repeat((*output)->repeat);
                  response->set_incarnation((*output)->incarnation);
                  response->set_protocol((*output)->protocol);
                  *response->mutable_beat() = rpc::ToProto(kHeartbeatInterval);
                }
                reactor->Finish(rpc::ToGrpcStatus(output->status()));
              });
  return reactor;
}

// One heartbeat stream. It is used by gRPC's threads and by the loop's thread, and `mu_` protects
// what both use. At most one read and one write are open. The service and the posted work keep it
// alive until OnDone().
class RegistryService::HeartbeatStream
    : public grpc::ServerBidiReactor<HeartbeatRequest, HeartbeatResponse>,
      public std::enable_shared_from_this<HeartbeatStream> {
 public:
  HeartbeatStream(RegistryService* service, const grpc::ServerContextBase* context, uint64_t stream)
      : service_(service), context_(context), stream_(stream) {}

  void Begin() { StartRead(&request_); }

  void OnReadDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    auto status = std::make_shared<absl::Status>();
    HeartbeatInput input = FromProto(request_, stream_);
    {
      MutexLock lock(&mu_);
      if (daemon_.empty()) {
        *status = rpc::CheckSpeaksFor(*context_, input.daemon);
        if (status->ok()) daemon_ = input.daemon;
      } else if (daemon_ != input.daemon)
        *status = absl::InvalidArgumentError(
            absl::StrCat("a heartbeat of daemon ", input.daemon, " came over the stream of daemon ",
                         daemon_, "; each daemon needs a stream of its own"));
    }

    auto self = shared_from_this();
    service_->loop_->Post(
        [status, input = std::move(input)](Controller& core, Instant now) {
          if (status->ok()) *status = core.Heartbeat(now, input);
        },
        [self, status](Controller& core) {
          if (!status->ok()) return self->End(rpc::ToGrpcStatus(*status));
          self->Send(core);
          MutexLock lock(&self->mu_);
          if (!self->ended_) self->StartRead(&self->request_);
        });
  }

  // Sends the daemon's present DesiredState, after the write that is open now. Call it on the
  // loop's thread.
  void Send(Controller& core) {
    MutexLock lock(&mu_);
    if (ended_ || daemon_.empty()) return;
    next_.Clear();
    ToProto(core.DesiredStateOf(daemon_), core, &next_);
    // If a message waits already, it is replaced, because only the newest one counts.
    waiting_ = true;
    if (!writing_) WriteNext();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    if (ok && waiting_ && !ended_) WriteNext();
  }

  void End(const grpc::Status& status) {
    {
      MutexLock lock(&mu_);
      if (ended_) return;
      ended_ = true;
    }
    Finish(status);
  }

  void OnDone() override {
    // The service's map may hold the last reference.
    const auto self = shared_from_this();
    bool shutting_down = false;
    {
      MutexLock lock(&service_->mu_);
      service_->streams_.erase(stream_);
      shutting_down = service_->shutting_down_;
    }
    MutexLock lock(&mu_);
    // A stream that this controller ends says nothing about its daemon. The core would take a
    // daemon that drains and whose stream ends for one that has left.
    if (daemon_.empty() || shutting_down) return;
    service_->loop_->Post([daemon = daemon_, stream = stream_](Controller& core, Instant now) {
      core.StreamClosed(now, daemon, stream);
    });
  }

  bool BelongsTo(const std::string& daemon) {
    MutexLock lock(&mu_);
    return daemon_ == daemon;
  }

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    waiting_ = false;
    writing_ = true;
    open_.Swap(&next_);
    StartWrite(&open_);
  }

  RegistryService* const service_;
  const grpc::ServerContextBase* const context_;
  const uint64_t stream_;
  HeartbeatRequest request_;  // The message that the open read fills.

  Mutex mu_;
  std::string daemon_ ABSL_GUARDED_BY(mu_);  // Empty before the first heartbeat.
  // The message of the open write, which gRPC reads.
  HeartbeatResponse open_ ABSL_GUARDED_BY(mu_);
  HeartbeatResponse next_ ABSL_GUARDED_BY(mu_);  // The message to send next, if waiting_.
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool waiting_ ABSL_GUARDED_BY(mu_) = false;  // next_ is to be sent.
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

grpc::ServerBidiReactor<HeartbeatRequest, HeartbeatResponse>* RegistryService::Heartbeat(
    grpc::CallbackServerContext* context) {
  const uint64_t stream = next_stream_++;
  auto heartbeats = std::make_shared<HeartbeatStream>(this, context, stream);
  bool shutting_down = false;
  {
    MutexLock lock(&mu_);
    streams_[stream] = heartbeats;
    shutting_down = shutting_down_;
  }
  if (shutting_down) {
    heartbeats->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the controller is shutting down"));
  } else if (const absl::Status store = CheckStore(*loop_); !store.ok()) {
    heartbeats->End(rpc::ToGrpcStatus(store));
  } else {
    heartbeats->Begin();
  }
  return heartbeats.get();
}

void RegistryService::OnDesiredStateChanged(Controller& core, const std::string& daemon) {
  SLUICE_FAILPOINT("controller.assign.before_down");
  std::vector<std::shared_ptr<HeartbeatStream>> streams;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, heartbeats] : streams_) streams.push_back(heartbeats);
  }
  for (const std::shared_ptr<HeartbeatStream>& heartbeats : streams) {
    if (heartbeats->BelongsTo(daemon)) heartbeats->Send(core);
  }
}

void RegistryService::Shutdown() {
  std::vector<std::shared_ptr<HeartbeatStream>> streams;
  {
    MutexLock lock(&mu_);
    shutting_down_ = true;
    for (const auto& [id, heartbeats] : streams_) streams.push_back(heartbeats);
  }
  for (const std::shared_ptr<HeartbeatStream>& heartbeats : streams) {
    heartbeats->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the controller is shutting down"));
  }
}

}  // namespace sluice::controller
