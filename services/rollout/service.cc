#include "services/rollout/service.h"

#include <utility>

#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "grpcpp/grpcpp.h"
#include "services/rollout/session.h"
#include "sluice/engine/v1/engine.grpc.pb.h"

namespace sluice::rollout {
namespace {

absl::Status Describe(const Session* session, engine::v1::DescribeResponse* response) {
  if (session == nullptr) return Error(absl::StatusCode::kFailedPrecondition, "NOT_YET", "this daemon has no job, and so no model");
  const EngineCaps& caps = session->engine().caps();
  response->mutable_caps()->set_exact_stamps(caps.exact_stamps);
  response->mutable_caps()->set_verifies(caps.verifies);
  response->mutable_caps()->set_in_flight_switch(caps.in_flight_switch);
  response->mutable_caps()->set_position_seeds(caps.position_seeds);
  response->mutable_caps()->set_kept_sets(caps.kept_sets);
  response->mutable_caps()->set_routing(caps.routing);
  response->mutable_caps()->set_deterministic(caps.deterministic);
  response->set_layout(session->layout());
  common::v1::Loaded* const loaded = response->add_loaded();
  *loaded->mutable_version() = rpc::ToProto(session->stats().version);
  loaded->set_verified(true);
  response->set_slots(session->engine().slots());
  response->set_max_context(session->engine().max_context());
  return absl::OkStatus();
}

class EngineServiceImpl final : public engine::v1::EngineService::CallbackService {
 public:
  explicit EngineServiceImpl(std::function<std::shared_ptr<Session>()> session) : session_(std::move(session)) {}

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const engine::v1::DescribeRequest*,
                                     engine::v1::DescribeResponse* response) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpcStatus(rollout::Describe(session_().get(), response)));
    return reactor;
  }

 private:
  const std::function<std::shared_ptr<Session>()> session_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeEngineService(std::function<std::shared_ptr<Session>()> session) {
  return std::make_unique<EngineServiceImpl>(std::move(session));
}

}  // namespace sluice::rollout
