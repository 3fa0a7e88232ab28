#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"

namespace grpc {
class Service;
}
namespace sluice::rpc {
class CallerTable;
}

namespace sluice::rollout {
class Session;
namespace http {
class Guests;
}

// EngineService over the sessions of this daemon: a call's job names the session. Register
// service() with a server before it starts, and call Shutdown() before the server drains.
//
// Thread-safe. Owns one thread, which sends a beat on silent streams each 10 s.
class EngineServer {
 public:
  // `callers`: who works for the jobs; `guests`: through whom the engines are asked. Both outlive
  // the server.
  EngineServer(const rpc::CallerTable* callers, http::Guests* guests);
  ~EngineServer();
  grpc::Service* service();

  void SetJob(const std::string& job, std::shared_ptr<Session> session);
  // Its calls end with `why`.
  void RemoveJob(const std::string& job, const absl::Status& why);
  // Ends the beats. Idempotent.
  void Shutdown();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::rollout
