#include "common/weights/service.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/access.h"
#include "common/rpc/caller.h"
#include "common/rpc/convert.h"
#include "common/rpc/payload.h"
#include "common/rpc/status.h"
#include "common/weights/publisher.h"
#include "sluice/weights/v1/weights.grpc.pb.h"

namespace sluice {
namespace {

using weights::v1::WeightsService;
constexpr absl::Duration kBeatInterval = absl::Seconds(10);

weights::v1::Latest ToProto(const PublishedVersion& latest) {
  weights::v1::Latest out;
  *out.mutable_version() = rpc::ToProto(latest.version);
  out.set_manifest(latest.manifest);
  out.set_state(latest.state.bytes());
  if (latest.hold_until) out.set_hold_until(*latest.hold_until);
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

// Sends a list of frames and ends the stream with a status. Deletes itself in OnDone().
class FetchReactor : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  FetchReactor(std::deque<grpc::ByteBuffer> frames, grpc::Status end)
      : frames_(std::move(frames)), end_(std::move(end)) {
    Next();
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the subscriber is gone"));
    frames_.pop_front();
    Next();
  }
  void OnDone() override { delete this; }

 private:
  void Next() {
    if (frames_.empty()) return Finish(end_);
    StartWrite(&frames_.front());
  }
  std::deque<grpc::ByteBuffer> frames_;
  const grpc::Status end_;
};

using Base = WeightsService::WithRawCallbackMethod_Fetch<WeightsService::CallbackService>;

}  // namespace

class WeightsServer::Impl final : public Base {
 public:
  explicit Impl(const rpc::CallerTable* callers)
      : callers_(callers), beats_([this] { BeatLoop(); }) {}
  ~Impl() override { Stop(); }

  void SetPublisher(std::shared_ptr<WeightPublisher> publisher) {
    std::set<std::shared_ptr<WatchReactor>> open;
    {
      MutexLock lock(&mu_);
      publisher_ = std::move(publisher);
      open = watches_;
    }
    // Subscribers will reconnect and get the new publisher.
    for (const auto& watch : open)
      watch->EndStream(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the publisher changed"));
  }

  void Stop() {
    std::set<std::shared_ptr<WatchReactor>> open;
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      stopping_ = true;
      stop_.NotifyAll();
      open = watches_;
    }
    for (const auto& watch : open)
      watch->EndStream(grpc::Status(grpc::StatusCode::UNAVAILABLE, "shutting down"));
    beats_.join();
  }

  // The listener holds only a weak pointer, because the publisher may outlive the stream.
  grpc::ServerWriteReactor<weights::v1::Latest>* Watch(
      grpc::CallbackServerContext* context, const weights::v1::WatchRequest* request) override {
    const std::shared_ptr<WatchReactor> watch = WatchReactor::Make();
    const auto publisher = FindPublisher(*context, request->call(), {rpc::Role::kRollout}, watch);
    if (!publisher.ok()) {
      watch->EndStream(rpc::ToGrpcStatus(publisher.status()));
      return watch.get();
    }

    const std::weak_ptr<WatchReactor> weak = watch;
    const uint64_t listener = (*publisher)->AddListener([weak](const PublishedVersion& latest) {
      if (const auto reactor = weak.lock()) reactor->OfferLatest(ToProto(latest));
    });
    watch->on_done = [this, weak, listener, publisher = *publisher] {
      publisher->RemoveListener(listener);
      MutexLock lock(&mu_);
      watches_.erase(weak.lock());
    };
    return watch.get();
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Fetch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* bytes) override {
    std::deque<grpc::ByteBuffer> frames;
    const absl::Status status = FetchFrames(*context, *bytes, &frames);
    return new FetchReactor(std::move(frames), rpc::ToGrpcStatus(status));
  }

  grpc::ServerUnaryReactor* Lease(grpc::CallbackServerContext* context,
                                  const weights::v1::LeaseRequest* request,
                                  weights::v1::LeaseResponse*) override {
    return AnswerUnary(context, request->call(),
                       {rpc::Role::kRollout, rpc::Role::kController, rpc::Role::kOperator},
                       [&](WeightPublisher& publisher) {
                         publisher.Lease(request->call().job().worker(),
                                         {request->manifests().begin(), request->manifests().end()},
                                         rpc::FromProto(request->ttl()));
                         return absl::OkStatus();
                       });
  }

  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context,
                                   const weights::v1::ReportRequest* request,
                                   weights::v1::ReportResponse*) override {
    return AnswerUnary(context, request->call(), {rpc::Role::kRollout},
                       [&](WeightPublisher& publisher) -> absl::Status {
                         SLUICE_ASSIGN_OR_RETURN(const Fingerprint state,
                                                 Fingerprint::FromBytes(request->state()));
                         publisher.Report({.worker = request->call().job().worker(),
                                           .version = rpc::FromProto(request->version()),
                                           .phase = weights::v1::ReplicaPhase_Name(request->phase())
                                                        .substr(sizeof("REPLICA_PHASE_") - 1),
                                           .state = state,
                                           .cause = request->cause()});
                         return absl::OkStatus();
                       });
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const weights::v1::ListRequest* request,
                                 weights::v1::ListResponse* response) override {
    return AnswerUnary(context, request->call(),
                       {rpc::Role::kRollout, rpc::Role::kController, rpc::Role::kOperator},
                       [&](WeightPublisher& publisher) {
                         for (const WeightPublisher::Edge& edge : publisher.edges()) {
                           weights::v1::VersionNode* const out = response->add_nodes();
                           *out->mutable_version() = rpc::ToProto(edge.version.version);
                           out->set_state(edge.version.state.bytes());
                           out->set_manifest(edge.manifest);
                           out->set_kind(edge.base ? weights::v1::Manifest::KIND_DELTA
                                                   : weights::v1::Manifest::KIND_FULL);
                           if (edge.base) out->set_base(edge.base->bytes());
                           out->set_bytes(edge.bytes);
                           *out->mutable_created() = rpc::ToProto(edge.created);
                         }
                         for (const ReplicaState& replica : publisher.replicas()) {
                           weights::v1::Replica* const out = response->add_replicas();
                           out->set_replica(replica.worker);
                           out->set_daemon(replica.worker);
                           *out->mutable_version() = rpc::ToProto(replica.version);
                           weights::v1::ReplicaPhase phase;
                           if (weights::v1::ReplicaPhase_Parse(
                                   absl::StrCat("REPLICA_PHASE_", replica.phase), &phase))
                             out->set_phase(phase);
                           out->set_state(replica.state.bytes());
                           *out->mutable_age() =
                               rpc::ToProto(Clock::Real()->Monotonic() - replica.reported_at);
                           out->set_cause(replica.cause);
                         }
                         return absl::OkStatus();
                       });
  }

 private:
  // Checks that the caller may call, and returns the publisher. A `watch` of this publisher is
  // entered in watches_ under the same lock, so that SetPublisher() and Stop() end it from now on.
  // UNAVAILABLE (NOT_YET): there is none.
  absl::StatusOr<std::shared_ptr<WeightPublisher>> FindPublisher(
      const grpc::ServerContextBase& context, const common::v1::Call& call,
      std::initializer_list<rpc::Role> roles,
      const std::shared_ptr<WatchReactor>& watch = nullptr) {
    SLUICE_RETURN_IF_ERROR(
        rpc::CheckJobRef(context, call.job().worker(), call.job().incarnation()));
    SLUICE_RETURN_IF_ERROR(
        callers_->Check(call.job().job(), call.job().worker(), call.job().incarnation(), roles));
    MutexLock lock(&mu_);
    if (publisher_ == nullptr || stopping_) {
      return ErrorWith(absl::StatusCode::kUnavailable,
                       {.reason = "NOT_YET", .retry_after = absl::Milliseconds(200)},
                       "no weights are published here yet");
    }
    if (watch != nullptr) watches_.insert(watch);
    return publisher_;
  }

  // Answers a unary call with the status that `body` returns for the publisher.
  template <typename Body>
  grpc::ServerUnaryReactor* AnswerUnary(grpc::CallbackServerContext* context,
                                        const common::v1::Call& call,
                                        std::initializer_list<rpc::Role> roles, Body body) {
    const auto publisher = FindPublisher(*context, call, roles);
    const absl::Status status = publisher.ok() ? body(**publisher) : publisher.status();
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpcStatus(status));
    return reactor;
  }

  // Makes the frames of the requested objects. A missing object becomes a frame that names it.
  absl::Status FetchFrames(const grpc::ServerContextBase& context, const grpc::ByteBuffer& bytes,
                           std::deque<grpc::ByteBuffer>* frames) {
    weights::v1::FetchRequest request;
    grpc::ByteBuffer copy = bytes;  // Shares the bytes; parsing empties the copy.
    if (!grpc::SerializationTraits<weights::v1::FetchRequest>::Deserialize(&copy, &request).ok())
      return absl::InvalidArgumentError("the request cannot be parsed as a FetchRequest");
    SLUICE_ASSIGN_OR_RETURN(
        const std::shared_ptr<WeightPublisher> publisher,
        FindPublisher(context, request.call(), {rpc::Role::kRollout, rpc::Role::kOperator}));
    for (int index = 0; index < request.objects_size(); ++index) {
      const weights::v1::ObjectRange& want = request.objects(index);
      weights::v1::FetchHeader header;

      header.set_index(index);
      const std::shared_ptr<const std::string> object = publisher->FindObject(want.id());
      if (object == nullptr) {
        header.add_missing(want.id());
        SLUICE_ASSIGN_OR_RETURN(grpc::ByteBuffer frame, rpc::EncodeFrame(header, {}));
        frames->push_back(std::move(frame));
        continue;
      }

      if (want.offset() > object->size())
        return absl::InvalidArgumentError(absl::StrCat("objects[", index, "].offset ",
                                                       want.offset(), " is beyond the object's ",
                                                       object->size(), " bytes"));
      const uint64_t rest = object->size() - want.offset();
      const uint64_t end =
          want.offset() + (want.length() == 0 ? rest : std::min(want.length(), rest));

      // An empty range still gets one frame, so that the caller learns the object's size.
      for (uint64_t at = want.offset(); at < end || at == want.offset();) {
        const absl::string_view piece = absl::string_view(*object).substr(
            at, std::min<uint64_t>(end - at, rpc::kTargetPayloadBytes));
        header.set_offset(at);
        header.set_size(object->size());
        header.set_crc32c(Crc32c(piece));
        SLUICE_ASSIGN_OR_RETURN(grpc::ByteBuffer frame,
                                rpc::EncodeFrame(header, {{.bytes = piece, .owner = object}}));
        frames->push_back(std::move(frame));
        at += std::max<uint64_t>(1, piece.size());
      }
    }
    return absl::OkStatus();
  }

  void BeatLoop() {
    while (true) {
      std::set<std::shared_ptr<WatchReactor>> open;
      {
        MutexLock lock(&mu_);
        if (!stopping_) stop_.WaitFor(&mu_, kBeatInterval);
        if (stopping_) return;
        open = watches_;
      }
      for (const auto& watch : open) watch->SendBeat();
    }
  }

  const rpc::CallerTable* const callers_;
  Mutex mu_;
  CondVar stop_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<WeightPublisher> publisher_ ABSL_GUARDED_BY(mu_);
  std::set<std::shared_ptr<WatchReactor>> watches_ ABSL_GUARDED_BY(mu_);
  std::thread beats_;
};

WeightsServer::WeightsServer(const rpc::CallerTable* callers)
    : impl_(std::make_unique<Impl>(callers)) {}
WeightsServer::~WeightsServer() = default;
grpc::Service* WeightsServer::service() { return impl_.get(); }
void WeightsServer::SetPublisher(std::shared_ptr<WeightPublisher> publisher) {
  impl_->SetPublisher(std::move(publisher));
}
void WeightsServer::Shutdown() { impl_->Stop(); }

}  // namespace sluice
