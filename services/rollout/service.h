#pragma once

#include <functional>
#include <memory>

namespace grpc {
class Service;
}

namespace sluice::rollout {
class Session;

// EngineService of this daemon. Describe tells what `session` gives (null: no job, FAILED_PRECONDITION); Generate and Score are
// not served yet (UNIMPLEMENTED). `session` runs on gRPC's threads and must not block.
std::unique_ptr<grpc::Service> MakeEngineService(std::function<std::shared_ptr<Session>()> session);

}  // namespace sluice::rollout
