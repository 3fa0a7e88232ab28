#include "common/daemon/admin_service.h"

#include <grpcpp/grpcpp.h>

#include <optional>

#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/daemon/log_lines.h"
#include "common/log/log.h"
#include "common/rpc/access.h"
#include "common/rpc/server_stream.h"
#include "common/rpc/status.h"
#include "common/rpc/text.h"
#include "sluice/admin/v1/admin.grpc.pb.h"

namespace sluice::daemon {
namespace {

class AdminServiceImpl final : public admin::v1::AdminService::CallbackService {
 public:
  explicit AdminServiceImpl(
      std::function<std::vector<common::v1::WaitEdge>(const std::string& job)> explain)
      : explain_(std::move(explain)) {}

  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const admin::v1::ExplainRequest* request,
                                    admin::v1::ExplainResponse* response) override {
    for (common::v1::WaitEdge& edge : explain_(request->call().job().job()))
      *response->add_edges() = std::move(edge);
    rpc::MakeTextValid(response);

    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerWriteReactor<admin::v1::LogsResponse>* Logs(
      grpc::CallbackServerContext*, const admin::v1::LogsRequest* request) override {
    auto stream = rpc::MakeStream<rpc::WriteStream<admin::v1::LogsResponse>>();
    // What is kept of a job is little, so all messages may wait in memory.
    for (admin::v1::LogsResponse& response : ReadLogLines(*request))
      stream->Send(std::move(response));
    stream->End(absl::OkStatus());
    return stream.get();
  }

  grpc::ServerUnaryReactor* Failpoint(grpc::CallbackServerContext* context,
                                      const admin::v1::FailpointRequest* request,
                                      admin::v1::FailpointResponse*) override {
    return AnswerFailpoint(*context, *request);
  }

 private:
  const std::function<std::vector<common::v1::WaitEdge>(const std::string& job)> explain_;
};

absl::Status Arm(const admin::v1::FailpointRequest& request) {
  return ArmFailpoint(request.name(), request.action(), static_cast<int>(request.nth()));
}

// Who has armed what, for the operator's log. Without TLS nobody knows who calls.
void LogFailpoint(const grpc::ServerContextBase& context,
                  const admin::v1::FailpointRequest& request, const absl::Status& result) {
  const std::optional<rpc::Identity> caller = rpc::CallerOf(context);
  log::WriteAudit("", {{"role", caller ? rpc::RoleName(caller->role) : ""},
                       {"person", caller ? caller->name : ""},
                       {"method", "Failpoint"},
                       {"failpoint", request.name()},
                       {"action", request.action()},
                       {"result", absl::StatusCodeToString(result.code())},
                       {"reason", ReasonOf(result)}});
}

class FailpointReactor final : public grpc::ServerUnaryReactor {
 public:
  FailpointReactor(const grpc::ServerContextBase& context,
                   const admin::v1::FailpointRequest& request)
      : request_(request) {
    later_ = kHasFailpoints && (request.action() == "kill" || request.action() == "stop");
    const absl::Status status = later_ ? absl::OkStatus() : Arm(request_);
    LogFailpoint(context, request_, status);
    Finish(rpc::ToGrpcStatus(status));
  }

  void OnDone() override {
    if (later_) (void)Arm(request_);  // Cannot fail: both actions are valid.
    delete this;
  }

 private:
  const admin::v1::FailpointRequest request_;
  bool later_ = false;  // Arm the failpoint when the answer is out.
};

}  // namespace

grpc::ServerUnaryReactor* AnswerFailpoint(const grpc::ServerContextBase& context,
                                          const admin::v1::FailpointRequest& request) {
  return new FailpointReactor(context, request);
}

std::unique_ptr<grpc::Service> MakeAdminService(
    std::function<std::vector<common::v1::WaitEdge>(const std::string& job)> explain) {
  return std::make_unique<AdminServiceImpl>(std::move(explain));
}

}  // namespace sluice::daemon
