#include "services/rollout/service.h"

#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/caller.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "grpcpp/grpcpp.h"
#include "services/rollout/session.h"
#include "sluice/engine/v1/engine.grpc.pb.h"

namespace sluice::rollout {
namespace {

constexpr absl::Duration kComes = absl::Milliseconds(200);  // A model that is being loaded may be there by then.

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
  response->set_layout(session.layout());
  if (const std::optional<PolicyVersion> version = session.serving()) {
    common::v1::Loaded* const loaded = response->add_loaded();
    *loaded->mutable_version() = rpc::ToProto(*version);
    loaded->set_verified(true);
  }
  response->set_slots(session.engine().slots());
  response->set_max_context(session.engine().max_context());
}

}  // namespace

class EngineServer::Impl final : public engine::v1::EngineService::CallbackService {
 public:
  explicit Impl(const rpc::CallerTable* callers) : callers_(callers) {}

  void SetJob(const std::string& job, std::shared_ptr<Session> session) {
    MutexLock lock(&mu_);
    jobs_[job] = std::move(session);
  }
  void RemoveJob(const std::string& job) {
    MutexLock lock(&mu_);
    jobs_.erase(job);
  }

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const engine::v1::DescribeRequest* request,
                                     engine::v1::DescribeResponse* response) override {
    const absl::StatusOr<std::shared_ptr<Session>> session = Find(request->call().job().job());
    if (session.ok()) rollout::Describe(**session, response);
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpcStatus(session.status()));
    return reactor;
  }

 private:
  absl::StatusOr<std::shared_ptr<Session>> Find(const std::string& job) {
    MutexLock lock(&mu_);
    const auto found = jobs_.find(job);
    if (found != jobs_.end()) return found->second;
    return ErrorWith(absl::StatusCode::kUnavailable, {.reason = "NOT_LISTED", .hint = "call.job.job is the 32 hex digits of a job that this daemon samples for", .retry_after = kComes},
                     absl::StrCat("job '", job, "' has no engine here, or not yet"));
  }

  const rpc::CallerTable* const callers_;
  Mutex mu_;
  std::map<std::string, std::shared_ptr<Session>> jobs_ ABSL_GUARDED_BY(mu_);
};

EngineServer::EngineServer(const rpc::CallerTable* callers) : impl_(std::make_unique<Impl>(callers)) {}
EngineServer::~EngineServer() = default;
grpc::Service* EngineServer::service() { return impl_.get(); }
void EngineServer::SetJob(const std::string& job, std::shared_ptr<Session> session) { impl_->SetJob(job, std::move(session)); }
void EngineServer::RemoveJob(const std::string& job) { impl_->RemoveJob(job); }

}  // namespace sluice::rollout
