#include "services/rollout/service.h"

#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/access.h"
#include "common/rpc/caller.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "grpcpp/grpcpp.h"
#include "services/rollout/api_model.h"
#include "services/rollout/evaluate_stream.h"
#include "services/rollout/generate_stream.h"
#include "services/rollout/http/guests.h"
#include "services/rollout/score_stream.h"
#include "services/rollout/session.h"
#include "sluice/engine/v1/engine.grpc.pb.h"

namespace sluice::rollout {
namespace {

// Time between two empty messages on a silent stream.
constexpr absl::Duration kKeepalivePeriod = absl::Seconds(10);
// After this time a caller should ask again for a job that is not here: its model may be loading.
constexpr absl::Duration kRetryAfter = absl::Milliseconds(200);

void Describe(const Session& session, engine::v1::DescribeResponse* response) {
  const EngineCaps& caps = session.engine().caps();
  response->mutable_caps()->set_exact_stamps(caps.exact_stamps);
  response->mutable_caps()->set_verifies(caps.verifies);
  response->mutable_caps()->set_in_flight_switch(caps.in_flight_switch);
  response->mutable_caps()->set_position_seeds(caps.position_seeds);
  response->mutable_caps()->set_kept_sets(caps.kept_sets);
  response->mutable_caps()->set_routing(caps.routing);
  response->mutable_caps()->set_deterministic(caps.deterministic);
  response->set_model(session.model_digest());
  response->set_layout(session.layout_id());
  if (const std::optional<PolicyVersion> version = session.serving()) {
    common::v1::Loaded* const loaded = response->add_loaded();
    *loaded->mutable_version() = rpc::ToProto(*version);
    loaded->set_verified(true);
  }
  response->set_slots(session.engine().slots());
  response->set_max_context(session.engine().max_context());
}

// Calls SendKeepalive() of each stream every kKeepalivePeriod, until the stream is gone. Owns the
// thread that does so.
class KeepaliveSender {
 public:
  KeepaliveSender() : thread_([this] { Run(); }) {}
  ~KeepaliveSender() { Stop(); }

  template <typename Stream>
  void Add(const std::shared_ptr<Stream>& stream) {
    MutexLock lock(&mu_);
    senders_.push_back([weak = std::weak_ptr<Stream>(stream)] {
      const auto alive = weak.lock();
      if (alive != nullptr) alive->SendKeepalive();
      return alive != nullptr;
    });
  }

  void Stop() {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      stop_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  using Sender = std::function<bool()>;  // Returns false if the stream is gone.

  // The senders are called without the lock, and then put back behind those added meanwhile.
  void Run() {
    std::vector<Sender> senders;
    while (true) {
      {
        MutexLock lock(&mu_);
        senders_.insert(senders_.end(), std::make_move_iterator(senders.begin()),
                        std::make_move_iterator(senders.end()));
        if (!stopping_) stop_.WaitFor(&mu_, kKeepalivePeriod);
        if (stopping_) return;
        senders = std::exchange(senders_, {});
      }
      std::erase_if(senders, [](const Sender& send) { return !send(); });
    }
  }

  Mutex mu_;
  CondVar stop_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Sender> senders_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

// The methods are listed one by one, because CallbackService has a typed Score that a raw one
// cannot override.
using E = engine::v1::EngineService;
using Base = E::WithCallbackMethod_Describe<E::WithCallbackMethod_Generate<
    E::WithCallbackMethod_Evaluate<E::WithRawCallbackMethod_Score<E::Service>>>>;

}  // namespace

class EngineServer::Impl final : public Base {
 public:
  Impl(const rpc::CallerTable* callers, http::Guests* guests)
      : callers_(callers), guests_(guests) {}

  void SetJob(const std::string& job, std::shared_ptr<Session> session) {
    auto model = std::make_shared<ApiModel>(session);
    MutexLock lock(&mu_);
    jobs_[job] = {std::move(session), std::move(model)};
  }

  void RemoveJob(const std::string& job, const absl::Status& why) {
    Job removed;
    {
      MutexLock lock(&mu_);
      const auto found = jobs_.find(job);
      if (found == jobs_.end()) return;
      removed = std::move(found->second);
      jobs_.erase(found);
    }
    guests_->FailRequestsOf(removed.model.get(), why);
  }

  void Shutdown() { keepalive_.Stop(); }

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const engine::v1::DescribeRequest* request,
                                     engine::v1::DescribeResponse* response) override {
    const absl::StatusOr<Job> job =
        CheckAndFindJob(*context, request->call(),
                        {rpc::Role::kController, rpc::Role::kRollout, rpc::Role::kReward,
                         rpc::Role::kTrainer, rpc::Role::kOperator});
    if (job.ok()) rollout::Describe(*job->session, response);
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpcStatus(job.status()));
    return reactor;
  }

  grpc::ServerWriteReactor<engine::v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const engine::v1::GenerateRequest* request) override {
    const auto stream = rpc::MakeStream<GenerateStream>(guests_);
    const absl::StatusOr<Job> job =
        CheckAndFindJob(*context, request->call(), {rpc::Role::kReward, rpc::Role::kOperator});
    absl::Status status = job.status();
    if (job.ok()) status = stream->Start(job->model, *request);
    if (!status.ok()) stream->End(std::move(status));
    keepalive_.Add(stream);
    return stream.get();
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Score(
      grpc::CallbackServerContext* context) override {
    const auto stream = rpc::MakeStream<ScoreStream>(
        guests_,
        [this,
         context](const common::v1::Call& call) -> absl::StatusOr<std::shared_ptr<http::Model>> {
          SLUICE_ASSIGN_OR_RETURN(const Job job,
                                  CheckAndFindJob(*context, call, {rpc::Role::kReward}));
          return job.model;
        });
    keepalive_.Add(stream);
    stream->StartReading();
    return stream.get();
  }

  grpc::ServerWriteReactor<engine::v1::EvaluateResponse>* Evaluate(
      grpc::CallbackServerContext* context, const engine::v1::EvaluateRequest* request) override {
    const auto stream = rpc::MakeStream<EvaluateStream>();
    const absl::StatusOr<Job> job =
        CheckAndFindJob(*context, request->call(), {rpc::Role::kTrainer});
    absl::Status status = job.status();
    if (job.ok()) status = stream->Start(job->session, *request);
    if (!status.ok()) stream->End(std::move(status));
    keepalive_.Add(stream);
    return stream.get();
  }

 private:
  struct Job {
    std::shared_ptr<Session> session;
    std::shared_ptr<ApiModel> model;
  };

  // Checks that the caller works for the job in one of `roles`, and finds the job.
  absl::StatusOr<Job> CheckAndFindJob(const grpc::ServerContextBase& context,
                                      const common::v1::Call& call,
                                      std::initializer_list<rpc::Role> roles) {
    SLUICE_RETURN_IF_ERROR(
        rpc::CheckJobRef(context, call.job().worker(), call.job().incarnation()));
    SLUICE_RETURN_IF_ERROR(
        callers_->Check(call.job().job(), call.job().worker(), call.job().incarnation(), roles));
    return FindJob(call.job().job());
  }

  absl::StatusOr<Job> FindJob(const std::string& job) {
    MutexLock lock(&mu_);
    const auto found = jobs_.find(job);
    if (found != jobs_.end()) return found->second;
    return ErrorWith(
        absl::StatusCode::kUnavailable,
        {.reason = "NOT_LISTED",
         .hint = "call.job.job is the 32 hex digits of a job that this daemon samples for",
         .retry_after = kRetryAfter},
        absl::StrCat("job '", job, "' has no engine here, or not yet"));
  }

  const rpc::CallerTable* const callers_;
  http::Guests* const guests_;
  Mutex mu_;
  std::map<std::string, Job> jobs_ ABSL_GUARDED_BY(mu_);
  KeepaliveSender keepalive_;
};

EngineServer::EngineServer(const rpc::CallerTable* callers, http::Guests* guests)
    : impl_(std::make_unique<Impl>(callers, guests)) {}
EngineServer::~EngineServer() = default;
grpc::Service* EngineServer::service() { return impl_.get(); }
void EngineServer::SetJob(const std::string& job, std::shared_ptr<Session> session) {
  impl_->SetJob(job, std::move(session));
}
void EngineServer::RemoveJob(const std::string& job, const absl::Status& why) {
  impl_->RemoveJob(job, why);
}
void EngineServer::Shutdown() { impl_->Shutdown(); }

}  // namespace sluice::rollout
