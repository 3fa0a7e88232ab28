#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace grpc {
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

// AdminService as every daemon has it: Explain asks `explain` for the waits of one job (its id),
// and Failpoint arms one in builds that have them (UNIMPLEMENTED elsewhere). `explain` runs on
// gRPC's threads and must not block.
std::unique_ptr<grpc::Service> MakeAdminService(
    std::function<std::vector<common::v1::WaitEdge>(const std::string& job)> explain);

// Answers Failpoint, for a daemon with an admin service of its own. What ends or stops this process
// is armed once the answer is out, or it might take the answer with it. The reactor deletes itself.
// UNIMPLEMENTED: this build has none. INVALID_ARGUMENT: no such action.
grpc::ServerUnaryReactor* AnswerFailpoint(const admin::v1::FailpointRequest& request);

}  // namespace sluice::daemon
