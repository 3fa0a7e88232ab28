#include "common/daemon/admin_service.h"

#include <grpcpp/grpcpp.h>

#include "common/base/failpoint.h"
#include "common/rpc/status.h"
#include "sluice/admin/v1/admin.grpc.pb.h"

namespace sluice::daemon {
namespace {

class AdminServiceImpl final : public admin::v1::AdminService::CallbackService {
 public:
  explicit AdminServiceImpl(std::function<std::vector<common::v1::WaitEdge>(const std::string& job)> explain) : explain_(std::move(explain)) {}

  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context, const admin::v1::ExplainRequest* request, admin::v1::ExplainResponse* response) override {
    for (common::v1::WaitEdge& edge : explain_(request->call().job().job())) *response->add_edges() = std::move(edge);
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* Failpoint(grpc::CallbackServerContext* context, const admin::v1::FailpointRequest* request, admin::v1::FailpointResponse*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpcStatus(daemon::ArmFailpoint(*request)));
    return reactor;
  }

 private:
  const std::function<std::vector<common::v1::WaitEdge>(const std::string& job)> explain_;
};

}  // namespace

absl::Status ArmFailpoint(const admin::v1::FailpointRequest& request) {
#ifdef SLUICE_FAILPOINTS
  return sluice::ArmFailpoint(request.name(), request.action(), static_cast<int>(request.nth()));
#else
  return absl::UnimplementedError("this build has no failpoints; configure with -DSLUICE_FAILPOINTS=ON");
#endif
}

std::unique_ptr<grpc::Service> MakeAdminService(std::function<std::vector<common::v1::WaitEdge>(const std::string& job)> explain) {
  return std::make_unique<AdminServiceImpl>(std::move(explain));
}

}  // namespace sluice::daemon
