#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace grpc {
class Service;
}  // namespace grpc
namespace sluice::common::v1 {
class WaitEdge;
}  // namespace sluice::common::v1

namespace sluice::queue {
class JobTable;
class Metrics;

// Serves QueueService with gRPC's callback API: it translates the calls for the jobs of a table.
// `jobs` and `metrics` outlive the server.
class QueueServer {
 public:
  QueueServer(JobTable* jobs, Metrics* metrics);
  ~QueueServer();

  grpc::Service* service();
  // What each parked call and each lease of a job waits for.
  std::vector<common::v1::WaitEdge> Explain(const std::string& job);
  // Lets clients on this host read and write payload through shared memory. `address` is where the
  // gRPC server listens. ALREADY_EXISTS: another process listens on the socket.
  absl::Status ShareMemory(const std::string& address);
  // Ends the Watch streams and the sharing of memory, and joins the server's threads. Parked calls
  // are ended by JobTable::Stop(). Idempotent.
  void Stop();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::queue
