#pragma once

#include <memory>
#include <string>

namespace grpc {
class Service;
}
namespace sluice::rpc {
class CallerTable;
}

namespace sluice::rollout {
class Session;

// EngineService over the sessions of this daemon: a call's job names the session. Register service() with a server before it
// starts. Generate and Score are not served yet (UNIMPLEMENTED).
//
// Thread-safe.
class EngineServer {
 public:
  // `callers`: who works for the jobs; outlives the server.
  explicit EngineServer(const rpc::CallerTable* callers);
  ~EngineServer();
  grpc::Service* service();

  void SetJob(const std::string& job, std::shared_ptr<Session> session);
  void RemoveJob(const std::string& job);

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::rollout
