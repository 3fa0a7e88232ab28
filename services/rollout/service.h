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

// Serves EngineService. The job that a call names selects the session. Register service() with a
// server before that starts, and call Shutdown() before it drains.
//
// Thread-safe. Owns one thread, which every 10 s sends an empty message on streams that are silent.
class EngineServer {
 public:
  // `callers` knows which daemons work for which job. `guests` passes requests to the engines. Both
  // outlive the server.
  EngineServer(const rpc::CallerTable* callers, http::Guests* guests);
  ~EngineServer();
  grpc::Service* service();

  // Accepts calls for the job.
  void SetJob(const std::string& job, std::shared_ptr<Session> session);
  // Accepts no more calls for the job, and fails its requests in progress with `why`.
  void RemoveJob(const std::string& job, const absl::Status& why);
  // Joins the thread. Idempotent.
  void Shutdown();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::rollout
