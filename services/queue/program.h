#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/file.h"
#include "common/daemon/controller_link.h"
#include "common/daemon/daemon.h"
#include "services/queue/jobs.h"
#include "services/queue/metrics.h"
#include "services/queue/mirror.h"
#include "services/queue/service.h"

namespace sluice::queue {

// The program sluice-queue. It runs the jobs that the controller sets; jobs of the levels metadata
// and full come back from the data directory after a restart.
class QueueProgram : public daemon::Program {
 public:
  static std::vector<daemon::About::Flag> Flags();
  // FAILED_PRECONDITION: another process owns the data directory. INVALID_ARGUMENT: a flag has a
  // value that is not allowed.
  static absl::StatusOr<std::unique_ptr<daemon::Program>> Make(const daemon::Host& host);
  ~QueueProgram() override;

  std::vector<grpc::Service*> services() override;
  absl::Status Start(const std::string& address, const std::string& ops) override;
  absl::Status CheckReady() override;
  void Drain() override;

 private:
  QueueProgram(const daemon::Host& host, std::optional<DirLock> lock,
               std::shared_ptr<LedgerMirror> mirror, JobTable::Options jobs);

  // Sends an alarm to the controller as an event.
  void RaiseAlarm(const std::string& job, const Alarm& alarm);

  const daemon::Host host_;
  const std::optional<DirLock> lock_;       // Holds the data directory; unset without one.
  const std::shared_ptr<Metrics> metrics_;  // Shared with the registry.
  // Null if none is asked for. Shared with the registry.
  const std::shared_ptr<LedgerMirror> mirror_;
  JobTable jobs_;
  std::atomic<bool> recovered_ = false;
  QueueServer server_;
  const std::unique_ptr<grpc::Service> admin_;
  std::unique_ptr<daemon::ControllerLink> link_;
};

}  // namespace sluice::queue
