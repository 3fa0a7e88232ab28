#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "services/controller/loop.h"
#include "sluice/registry/v1/registry.grpc.pb.h"

namespace sluice::controller {

// The calls of daemons: Register, and a Heartbeat stream for each daemon. Once the contents of a
// heartbeat are stored, the answer tells the daemon all that it must know (DesiredState in
// core/controller.h). If this changes between heartbeats, it is sent at once.
class RegistryService : public registry::v1::RegistryService::CallbackService {
 public:
  // `loop` outlives the service.
  explicit RegistryService(Loop* loop) : loop_(loop) {}

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const registry::v1::RegisterRequest* request,
                                     registry::v1::RegisterResponse* response) override;
  grpc::ServerBidiReactor<registry::v1::HeartbeatRequest, registry::v1::HeartbeatResponse>*
  Heartbeat(grpc::CallbackServerContext* context) override;

  // Sends the daemon its changed DesiredState. Call it on the loop's thread.
  void OnDesiredStateChanged(Controller& core, const std::string& daemon) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all streams and refuses new ones with UNAVAILABLE. Idempotent.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class HeartbeatStream;

  Loop* const loop_;
  std::atomic<uint64_t> next_stream_{1};
  Mutex mu_;
  std::map<uint64_t, std::shared_ptr<HeartbeatStream>> streams_ ABSL_GUARDED_BY(mu_);
  bool shutting_down_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::controller
