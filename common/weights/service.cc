#include "common/weights/service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/access.h"
#include "common/rpc/caller.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "common/weights/broadcast_server.h"
#include "common/weights/convert.h"
#include "common/weights/fetch_reactor.h"
#include "common/weights/publisher.h"
#include "common/weights/shm_server.h"
#include "common/weights/transport.h"
#include "common/weights/ucx_stage.h"
#include "sluice/weights/v1/weights.grpc.pb.h"

namespace sluice {
namespace {

using weights::v1::WeightsService;
constexpr absl::Duration kBeatInterval = absl::Seconds(10);  // Of Watch.
constexpr int kMostObjects = 1000;

weights::v1::HeldLease ToProto(const WeightPublisher::HeldLease& lease) {
  weights::v1::HeldLease out;
  out.set_holder(lease.holder);
  out.mutable_manifests()->Add(lease.manifests.begin(), lease.manifests.end());
  out.set_pin(lease.pin);
  if (!lease.pin) {
    const absl::Duration left = lease.expires - Clock::Real()->Monotonic();
    *out.mutable_left() = rpc::ToProto(std::max(absl::ZeroDuration(), left));
  }
  return out;
}

weights::v1::VerifyResponse ToProto(const WeightsCheck& check) {
  weights::v1::VerifyResponse out;
  out.set_state(check.found.bytes());
  out.set_expected(check.expected.bytes());
  out.set_equal(check.found == check.expected);
  *out.mutable_version() = rpc::ToProto(check.version);
  out.mutable_tensors()->Add(check.tensors.begin(), check.tensors.end());
  return out;
}

std::optional<VersionHealth> HealthOf(const weights::v1::ReportRequest& report) {
  if (!report.has_health()) return std::nullopt;
  const weights::v1::VersionHealth& health = report.health();
  return VersionHealth{.rows = health.rows(),
                       .bad_rows = health.bad_rows(),
                       .gap_tokens = health.gap_tokens(),
                       .gap = health.gap(),
                       .probed = health.probed()};
}

weights::v1::Trial ToProto(const WeightPublisher::Trial& trial) {
  weights::v1::Trial out;
  *out.mutable_version() = rpc::ToProto(trial.version);
  out.set_replica(trial.canary);
  *out.mutable_waited() = rpc::ToProto(trial.waited);
  out.set_text(trial.text);
  return out;
}

weights::v1::Withdrawn ToProto(const WeightPublisher::Withdrawn& withdrawn) {
  weights::v1::Withdrawn out;
  *out.mutable_version() = rpc::ToProto(withdrawn.version);
  out.set_from(withdrawn.from);
  out.set_cause(withdrawn.cause);
  return out;
}

weights::v1::Latest ToProto(const Announcement& announced) {
  weights::v1::Latest out = ToProto(announced.version);
  out.set_candidate(announced.candidate);
  return out;
}

// One Watch stream. It writes the newest `latest`; values that arrive while a write is under way
// replace each other, so that only the newest is sent.
class WatchReactor : public grpc::ServerWriteReactor<weights::v1::Latest>,
                     public std::enable_shared_from_this<WatchReactor> {
 public:
  static std::shared_ptr<WatchReactor> Make() {
    auto reactor = std::make_shared<WatchReactor>();
    reactor->self_ = reactor;
    return reactor;
  }
  void OfferLatest(weights::v1::Latest latest) {
    MutexLock lock(&mu_);
    pending_ = std::move(latest);
    has_pending_ = true;
    WriteNext();
  }
  void SendBeat() {
    MutexLock lock(&mu_);
    if (writing_ || has_pending_) return;
    pending_.Clear();
    has_pending_ = true;
    WriteNext();
  }
  // A write that is under way must end before Finish(); OnWriteDone() calls it then.
  void EndStream(grpc::Status status) {
    MutexLock lock(&mu_);
    if (finished_) return;
    finished_ = true;
    if (!writing_) Finish(status);
    final_ = std::move(status);
  }
  // Called once, when gRPC has finished with the stream.
  std::function<void()> on_done;

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    if (finished_) return Finish(final_);
    if (!ok) {
      finished_ = true;
      return Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the subscriber is gone"));
    }
    WriteNext();
  }
  void OnCancel() override { EndStream(grpc::Status(grpc::StatusCode::CANCELLED, "cancelled")); }
  void OnDone() override {
    if (on_done) on_done();
    self_.reset();
  }

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || finished_ || !has_pending_) return;
    current_.Swap(&pending_);
    has_pending_ = false;
    writing_ = true;
    StartWrite(&current_);
  }

  std::shared_ptr<WatchReactor> self_;  // Keeps this object alive until OnDone().
  Mutex mu_;
  weights::v1::Latest current_, pending_;

  // At most one write is under way (writing_). pending_ holds the next message if has_pending_.
  // After finished_ is set, nothing more is written, and the stream ends with final_.
  bool has_pending_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status final_;
};

// The rollouts that may want a whole version that one asks for: those that have heard of it, lack
// it and read no memory of this process.
std::set<std::string> ListExpected(const WeightPublisher& publisher, PolicyVersion version) {
  const std::optional<PublishedVersion> candidate = publisher.candidate();
  if (candidate.has_value() && candidate->version == version) return {};  // Only the canary has.
  std::set<std::string> expected = publisher.listeners();
  for (const ReplicaState& replica : publisher.replicas()) {
    const bool has_it =
        (replica.phase == "STAGED" || replica.phase == "ACTIVE") && replica.version >= version;
    const bool reads_memory =
        replica.transport == kShmCaps.name || replica.transport == kUcxCaps.name;
    if (has_it || reads_memory) expected.erase(replica.worker);
  }
  return expected;
}

using Base = WeightsService::WithRawCallbackMethod_Fetch<WeightsService::CallbackService>;

}  // namespace

class WeightsServer::Impl final : public Base {
 public:
  // What is served of a job.
  struct Served {
    std::shared_ptr<WeightSource> source;
    std::shared_ptr<WeightPublisher> publisher;  // The same one; null if it is a relay.
    WeightsServer::Check check;                  // Of a relay.
    WeightsServer::Rollback rollback;            // Of a trainer.
  };

  explicit Impl(const rpc::CallerTable* callers)
      : callers_(callers), beats_([this] { BeatLoop(); }) {}
  ~Impl() override { Stop(); }

  void SetServed(const std::string& job, Served served) {
    const std::shared_ptr<WeightSource> source = served.source;
    Streams open;
    {
      MutexLock lock(&mu_);
      if (source == nullptr) served_.erase(job);
      else served_[job] = std::move(served);
      open = open_;
    }
    // Subscribers will reconnect and get the new source.
    open.End(job, absl::UnavailableError("what is served of this job has changed"));
  }

  absl::Status ShareMemory(const std::string& address) { return memory_.Start(address); }
  void SetBroadcasts(std::unique_ptr<BroadcastServer> broadcasts) {
    broadcasts_ = std::move(broadcasts);
  }
  void OfferUcx(absl::StatusOr<std::string> devices) {
    MutexLock lock(&mu_);
    no_ucx_ = devices.status();
    if (devices.ok()) stage_ = std::make_unique<UcxStage>(*std::move(devices));
  }

  void Stop() {
    memory_.Stop();
    if (broadcasts_ != nullptr) broadcasts_->Stop();
    Streams open;
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      stopping_ = true;
      stop_.NotifyAll();
      open = open_;
    }
    open.End("", absl::UnavailableError("shutting down"));
    beats_.join();
  }

  // The listener holds only a weak pointer, because the source may outlive the stream.
  grpc::ServerWriteReactor<weights::v1::Latest>* Watch(
      grpc::CallbackServerContext* context, const weights::v1::WatchRequest* request) override {
    const std::shared_ptr<WatchReactor> watch = WatchReactor::Make();
    const std::string& job = request->call().job().job();
    const auto served =
        FindServed(*context, request->call(), {rpc::Role::kRollout},
                   [&](const Served&, Streams* open) { open->watches.emplace(watch, job); });
    if (!served.ok()) {
      watch->EndStream(rpc::ToGrpcStatus(served.status()));
      return watch.get();
    }

    const std::weak_ptr<WatchReactor> weak = watch;
    const std::shared_ptr<WeightSource> source = served->source;
    const uint64_t listener =
        source->AddListener(request->call().job().worker(), [weak](const Announcement& announced) {
          if (const auto reactor = weak.lock()) reactor->OfferLatest(ToProto(announced));
        });
    watch->on_done = [this, weak, listener, source] {
      source->RemoveListener(listener);
      MutexLock lock(&mu_);
      open_.watches.erase(weak.lock());
    };
    return watch.get();
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Fetch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* bytes) override {
    weights::v1::FetchRequest request;
    grpc::ByteBuffer copy = *bytes;  // Shares the bytes; parsing empties the copy.
    if (!grpc::SerializationTraits<weights::v1::FetchRequest>::Deserialize(&copy, &request).ok()) {
      return FetchReactor::Refuse(
          absl::InvalidArgumentError("the request cannot be parsed as a FetchRequest"));
    }
    if (request.objects_size() > kMostObjects) {
      return FetchReactor::Refuse(absl::InvalidArgumentError(absl::StrCat(
          "the request names ", request.objects_size(), " objects; the limit is ", kMostObjects)));
    }

    UcxStage* stage = nullptr;
    if (request.by_ucx()) {
      const absl::StatusOr<UcxStage*> started = StartUcx(*context, request.call());
      if (!started.ok()) return FetchReactor::Refuse(started.status());
      stage = *started;
    }
    std::shared_ptr<FetchReactor> fetch;
    const auto enter = [&](const Served& served, Streams* open) {
      fetch = FetchReactor::Make(request, served.source, stage);
      fetch->on_done = [this, weak = std::weak_ptr<FetchReactor>(fetch)] {
        MutexLock lock(&mu_);
        open_.fetches.erase(weak.lock());
      };
      open->fetches.emplace(fetch, request.call().job().job());
      stop_.NotifyAll();
    };
    const auto served =
        FindServed(*context, request.call(), {rpc::Role::kRollout, rpc::Role::kOperator}, enter);
    if (!served.ok()) return FetchReactor::Refuse(served.status());
    fetch->Start();
    return fetch.get();
  }

  grpc::ServerUnaryReactor* Lease(grpc::CallbackServerContext* context,
                                  const weights::v1::LeaseRequest* request,
                                  weights::v1::LeaseResponse*) override {
    return AnswerUnary(context, request->call(),
                       {rpc::Role::kRollout, rpc::Role::kController, rpc::Role::kOperator},
                       [&](const Served& served) -> absl::Status {
                         if (served.publisher == nullptr) return KeepsNothing();
                         if (request->pin()) return Pin(*context, *request, *served.publisher);
                         served.publisher->Lease(
                             request->call().job().worker(),
                             {request->manifests().begin(), request->manifests().end()},
                             rpc::FromProto(request->ttl()));
                         return absl::OkStatus();
                       });
  }

  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context,
                                   const weights::v1::ReportRequest* request,
                                   weights::v1::ReportResponse*) override {
    return AnswerUnary(
        context, request->call(), {rpc::Role::kRollout}, [&](const Served& served) -> absl::Status {
          if (served.publisher == nullptr) return KeepsNothing();
          SLUICE_ASSIGN_OR_RETURN(const Fingerprint state,
                                  Fingerprint::FromBytes(request->state()));
          served.publisher->Report({.worker = request->call().job().worker(),
                                    .version = rpc::FromProto(request->version()),
                                    .phase = weights::v1::ReplicaPhase_Name(request->phase())
                                                 .substr(sizeof("REPLICA_PHASE_") - 1),
                                    .state = state,
                                    .cause = request->cause(),
                                    .parent = request->parent(),
                                    .transport = request->transport(),
                                    .why = request->transport_why(),
                                    .times = {request->times().begin(), request->times().end()},
                                    .health = HealthOf(*request)});
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* Verify(grpc::CallbackServerContext* context,
                                   const weights::v1::VerifyRequest* request,
                                   weights::v1::VerifyResponse* response) override {
    const auto served = FindServed(*context, request->call(), {rpc::Role::kController},
                                   [](const Served&, Streams*) {});
    absl::Status refused = served.status();
    if (refused.ok() && !served->check)
      refused = absl::UnimplementedError("only rollouts verify the weights of their engines");
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    if (!refused.ok()) {
      reactor->Finish(rpc::ToGrpcStatus(refused));
      return reactor;
    }
    served->check([reactor, request, response](absl::StatusOr<WeightsCheck> check) {
      absl::Status status = check.status();
      if (status.ok()) status = CheckVersion(*request, *check);
      if (status.ok()) *response = ToProto(*check);
      reactor->Finish(rpc::ToGrpcStatus(status));
    });
    return reactor;
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const weights::v1::ListRequest* request,
                                 weights::v1::ListResponse* response) override {
    return AnswerUnary(
        context, request->call(),
        {rpc::Role::kRollout, rpc::Role::kController, rpc::Role::kOperator},
        [&](const Served& served) {
          const std::optional<PublishedVersion> candidate = served.source->candidate();
          for (const WeightEdge& edge : served.source->edges()) {
            weights::v1::VersionNode* const out = response->add_nodes();
            *out = ToProto(edge);
            out->set_candidate(candidate.has_value() && edge.version.version == candidate->version);
          }
          if (!request->manifest().empty()) {
            const auto manifest = served.source->Find(request->manifest(), {}).object;
            if (manifest != nullptr) response->mutable_manifest()->ParseFromString(*manifest);
          }
          if (served.publisher == nullptr) return absl::OkStatus();
          for (const WeightPublisher::HeldLease& lease : served.publisher->leases())
            *response->add_leases() = ToProto(lease);
          for (const ReplicaState& replica : served.publisher->replicas()) {
            weights::v1::Replica* const out = response->add_replicas();
            out->set_replica(replica.worker);
            out->set_daemon(replica.worker);
            *out->mutable_version() = rpc::ToProto(replica.version);
            weights::v1::ReplicaPhase phase;
            if (weights::v1::ReplicaPhase_Parse(absl::StrCat("REPLICA_PHASE_", replica.phase),
                                                &phase))
              out->set_phase(phase);
            out->set_state(replica.state.bytes());
            *out->mutable_age() = rpc::ToProto(Clock::Real()->Monotonic() - replica.reported_at);
            out->set_cause(replica.cause);
            out->set_parent(replica.parent);
            out->set_transport(replica.transport);
            out->set_transport_why(replica.why);
            out->mutable_times()->insert(replica.times.begin(), replica.times.end());
            if (replica.health.has_value()) *out->mutable_health() = ToProto(*replica.health);
          }
          for (const WeightPublisher::Withdrawn& withdrawn : served.publisher->withdrawn())
            *response->add_withdrawn() = ToProto(withdrawn);
          if (const auto trial = served.publisher->trial(); trial.has_value())
            *response->mutable_trial() = ToProto(*trial);
          return absl::OkStatus();
        });
  }

  grpc::ServerUnaryReactor* JoinBroadcast(grpc::CallbackServerContext* context,
                                          const weights::v1::JoinBroadcastRequest* request,
                                          weights::v1::JoinBroadcastResponse* response) override {
    const auto served = FindServed(*context, request->call(), {rpc::Role::kRollout},
                                   [](const Served&, Streams*) {});
    absl::Status refused = served.status();
    if (refused.ok() && served->publisher == nullptr) refused = KeepsNothing();
    if (refused.ok() && broadcasts_ == nullptr) {
      refused = Error(absl::StatusCode::kFailedPrecondition, "NO_BROADCAST",
                      "this trainer has no address at which ranks may reach it");
    }
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    if (!refused.ok()) {
      reactor->Finish(rpc::ToGrpcStatus(refused));
      return reactor;
    }

    // Of a version that is not kept nobody is expected.
    std::set<std::string> expected;
    for (const WeightEdge& edge : served->source->edges()) {
      if (edge.manifest == request->manifest())
        expected = ListExpected(*served->publisher, edge.version.version);
    }
    broadcasts_->Join(
        {.job = request->call().job().job(),
         .worker = request->call().job().worker(),
         .manifest = request->manifest(),
         .wait = rpc::FromProto(request->wait()),
         .source = served->source,
         .expected = std::move(expected),
         .has_left = [context] { return context->IsCancelled(); },
         .answer =
             [reactor, response](absl::StatusOr<weights::v1::JoinBroadcastResponse> seat) {
               if (seat.ok()) *response = *std::move(seat);
               reactor->Finish(rpc::ToGrpcStatus(seat.status()));
             }});
    return reactor;
  }

  grpc::ServerUnaryReactor* Rollback(grpc::CallbackServerContext* context,
                                     const weights::v1::RollbackRequest* request,
                                     weights::v1::RollbackResponse*) override {
    return AnswerUnary(
        context, request->call(), {rpc::Role::kController},
        [&](const Served& served) -> absl::Status {
          if (!served.rollback)
            return absl::UnimplementedError("only trainers go back to older versions");
          return served.rollback(request->version());
        });
  }

 private:
  // Checks that `check` is of the version that was asked for.
  static absl::Status CheckVersion(const weights::v1::VerifyRequest& request,
                                   const WeightsCheck& check) {
    if (!request.has_version() || rpc::FromProto(request.version()) == check.version)
      return absl::OkStatus();
    return Error(absl::StatusCode::kNotFound, "GONE",
                 absl::StrCat("version ", rpc::FromProto(request.version()).str(),
                              " was asked for, but the engine holds ", check.version.str()));
  }

  // The streams that are open, each with its job.
  struct Streams {
    std::map<std::shared_ptr<WatchReactor>, std::string> watches;
    std::map<std::shared_ptr<FetchReactor>, std::string> fetches;

    // Ends those of one job, or all if `job` is empty.
    void End(const std::string& job, const absl::Status& why) const {
      for (const auto& [watch, of] : watches) {
        if (job.empty() || of == job) watch->EndStream(rpc::ToGrpcStatus(why));
      }
      for (const auto& [fetch, of] : fetches) {
        if (job.empty() || of == job) fetch->EndStream(why);
      }
    }
  };

  // Pins versions, or ends their pins: only for the controller, which asks for people.
  absl::Status Pin(const grpc::ServerContextBase& context, const weights::v1::LeaseRequest& request,
                   WeightPublisher& publisher) {
    const common::v1::JobRef& caller = request.call().job();
    SLUICE_RETURN_IF_ERROR(callers_->Check(caller.job(), caller.worker(), caller.incarnation(),
                                           {rpc::Role::kController}));
    if (request.manifests().empty() && !request.has_ttl()) return publisher.SetPin("", true);
    for (const std::string& manifest : request.manifests())
      SLUICE_RETURN_IF_ERROR(publisher.SetPin(manifest, !request.has_ttl()));
    return absl::OkStatus();
  }

  static absl::Status KeepsNothing() {
    return absl::FailedPreconditionError(
        "this daemon passes weights on; leases and reports go to the job's trainer");
  }

  // Checks that the caller may call, and returns what is served of its job. `enter` may enter a
  // stream under the same lock, so that SetServed() and Stop() end it from now on.
  // UNAVAILABLE (NOT_YET): nothing is.
  template <typename Enter>
  absl::StatusOr<Served> FindServed(const grpc::ServerContextBase& context,
                                    const common::v1::Call& call,
                                    std::initializer_list<rpc::Role> roles, Enter enter) {
    SLUICE_RETURN_IF_ERROR(
        rpc::CheckJobRef(context, call.job().worker(), call.job().incarnation()));
    return FindListed(call, roles, enter);
  }
  template <typename Enter>
  absl::StatusOr<Served> FindListed(const common::v1::Call& call,
                                    std::initializer_list<rpc::Role> roles, Enter enter) {
    SLUICE_RETURN_IF_ERROR(
        callers_->Check(call.job().job(), call.job().worker(), call.job().incarnation(), roles));
    MutexLock lock(&mu_);
    const auto it = served_.find(call.job().job());
    if (it == served_.end() || stopping_) {
      return ErrorWith(absl::StatusCode::kUnavailable,
                       {.reason = "NOT_YET", .retry_after = absl::Milliseconds(200)},
                       "no weights are published here yet");
    }
    enter(it->second, &open_);
    return it->second;
  }

  // Starts UCX, if that has not been done, for a caller who may call.
  absl::StatusOr<UcxStage*> StartUcx(const grpc::ServerContextBase& context,
                                     const common::v1::Call& call) {
    SLUICE_RETURN_IF_ERROR(
        FindServed(context, call, {rpc::Role::kRollout}, [](const Served&, Streams*) {}).status());
    UcxStage* stage;
    {
      MutexLock lock(&mu_);
      if (stage_ == nullptr) return no_ucx_;
      stage = stage_.get();
    }
    SLUICE_RETURN_IF_ERROR(stage->Start());
    return stage;
  }

  // What is served to a process of this host and user. Its word about who it is counts.
  absl::StatusOr<std::shared_ptr<WeightSource>> FindShared(const common::v1::Call& call) {
    SLUICE_ASSIGN_OR_RETURN(const Served served, FindListed(call, {rpc::Role::kRollout},
                                                            [](const Served&, Streams*) {}));
    return served.source;
  }

  // Answers a unary call with the status that `body` returns for what is served.
  template <typename Body>
  grpc::ServerUnaryReactor* AnswerUnary(grpc::CallbackServerContext* context,
                                        const common::v1::Call& call,
                                        std::initializer_list<rpc::Role> roles, Body body) {
    const auto served = FindServed(*context, call, roles, [](const Served&, Streams*) {});
    const absl::Status status = served.ok() ? body(*served) : served.status();
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpcStatus(status));
    return reactor;
  }

  void BeatLoop() {
    absl::Duration next_watch_beat = Clock::Real()->Monotonic() + kBeatInterval;
    while (true) {
      Streams open;
      {
        MutexLock lock(&mu_);
        // While a Fetch is open it may wait, and its caller must hear that this daemon lives.
        if (!stopping_ && open_.fetches.empty()) {
          stop_.WaitFor(&mu_, next_watch_beat - Clock::Real()->Monotonic());
        } else if (!stopping_) {
          stop_.WaitFor(&mu_, FetchReactor::kBeatInterval);
        }
        if (stopping_) return;
        open = open_;
      }
      for (const auto& [fetch, unused] : open.fetches) fetch->Beat();
      if (Clock::Real()->Monotonic() < next_watch_beat) continue;
      for (const auto& [watch, unused] : open.watches) watch->SendBeat();
      next_watch_beat = Clock::Real()->Monotonic() + kBeatInterval;
    }
  }

  const rpc::CallerTable* const callers_;
  std::unique_ptr<BroadcastServer> broadcasts_;  // Null: there are none.
  Mutex mu_;
  CondVar stop_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Served> served_ ABSL_GUARDED_BY(mu_);  // By job.
  Streams open_ ABSL_GUARDED_BY(mu_);
  std::thread beats_;
  // Null: no_ucx_ says why there is none. Streams use it without the lock.
  std::unique_ptr<UcxStage> stage_ ABSL_GUARDED_BY(mu_);
  absl::Status no_ucx_ ABSL_GUARDED_BY(mu_) =
      absl::FailedPreconditionError("this daemon offers no UCX");
  ShmServer memory_{[this](const common::v1::Call& call) { return FindShared(call); }};
};

WeightsServer::WeightsServer(const rpc::CallerTable* callers)
    : impl_(std::make_unique<Impl>(callers)) {}
WeightsServer::~WeightsServer() = default;
grpc::Service* WeightsServer::service() { return impl_.get(); }
void WeightsServer::SetPublisher(const std::string& job, std::shared_ptr<WeightPublisher> publisher,
                                 Rollback rollback) {
  impl_->SetServed(job, {.source = publisher,
                         .publisher = publisher,
                         .check = nullptr,
                         .rollback = std::move(rollback)});
}
void WeightsServer::SetRelay(const std::string& job, std::shared_ptr<WeightSource> relay,
                             Check check) {
  impl_->SetServed(job, {.source = std::move(relay),
                         .publisher = nullptr,
                         .check = std::move(check),
                         .rollback = nullptr});
}
absl::Status WeightsServer::ShareMemory(const std::string& address) {
  return impl_->ShareMemory(address);
}
void WeightsServer::SetBroadcasts(std::unique_ptr<BroadcastServer> broadcasts) {
  impl_->SetBroadcasts(std::move(broadcasts));
}
void WeightsServer::OfferUcx(absl::StatusOr<std::string> devices) {
  impl_->OfferUcx(std::move(devices));
}
void WeightsServer::Shutdown() { impl_->Stop(); }

}  // namespace sluice
