#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace grpc {
class ServerContextBase;
class ServerUnaryReactor;
class Service;
}  // namespace grpc
namespace sluice::admin::v1 {
class FailpointRequest;
}  // namespace sluice::admin::v1
namespace sluice::common::v1 {
class WaitEdge;
}  // namespace sluice::common::v1

namespace sluice::daemon {

// Makes the AdminService of every daemon except the controller, which has its own. Explain answers
// with what `explain` returns for one job (by its id). Logs sends the lines that this process keeps
// of a job (log_lines.h). Failpoint arms a failpoint in builds that
// have them, and is UNIMPLEMENTED elsewhere.
//
// `explain` runs on gRPC's threads and must not block.
std::unique_ptr<grpc::Service> MakeAdminService(
    std::function<std::vector<common::v1::WaitEdge>(const std::string& job)> explain);

// Answers a Failpoint call, for a daemon with an admin service of its own, and logs it as an event
// `audit`. An action that ends or stops the process is armed only after the answer is sent, so that
// the answer is not lost. The reactor deletes itself.
// UNIMPLEMENTED: this build has no failpoints.
// INVALID_ARGUMENT: no such action.
grpc::ServerUnaryReactor* AnswerFailpoint(const grpc::ServerContextBase& context,
                                          const admin::v1::FailpointRequest& request);

}  // namespace sluice::daemon
