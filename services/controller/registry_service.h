#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "services/controller/loop.h"
#include "sluice/registry/v1/registry.grpc.pb.h"

namespace sluice::controller {

// Daemons: Register, and a Heartbeat stream each. Each heartbeat is answered with the daemon's
// level once what it said is stored; a level that changes goes down at once.
class RegistryService : public registry::v1::RegistryService::CallbackService {
 public:
  // `loop` outlives the service.
  explicit RegistryService(Loop* loop) : loop_(loop) {}

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const registry::v1::RegisterRequest* request,
                                     registry::v1::RegisterResponse* response) override;
  grpc::ServerBidiReactor<registry::v1::HeartbeatRequest, registry::v1::HeartbeatResponse>*
  Heartbeat(grpc::CallbackServerContext* context) override;

  // On the loop's thread: the daemon's Down has changed.
  void Changed(Controller& core, const std::string& daemon) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all streams and refuses new ones: UNAVAILABLE. Idempotent.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Beats;

  Loop* const loop_;
  std::atomic<uint64_t> next_stream_{1};
  Mutex mu_;
  std::map<uint64_t, std::shared_ptr<Beats>> streams_ ABSL_GUARDED_BY(mu_);
  bool shut_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::controller
