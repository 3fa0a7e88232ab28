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

// QueueService on the callback API: translates calls for the jobs of a table. `jobs` and `metrics`
// outlive it.
class QueueServer {
 public:
  QueueServer(JobTable* jobs, Metrics* metrics);
  ~QueueServer();

  grpc::Service* service();
  // What each parked call of a job waits on.
  std::vector<common::v1::WaitEdge> Explain(const std::string& job);
  // Lets clients on this host read and write payload through shared memory; `address`: where the
  // gRPC server listens.
  absl::Status ShareMemory(const std::string& address);
  // Ends the Watch streams and stops their beats; idempotent. Parked calls end with the table's
  // Shut().
  void Shut();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::queue
