#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/collective/rendezvous_server.h"
#include "common/daemon/collective_flags.h"
#include "common/daemon/daemon.h"
#include "common/log/job_lines.h"
#include "common/rpc/caller.h"
#include "services/trainer/assigned_job.h"

namespace sluice {
class CoreShare;
class WeightsServer;
namespace daemon {
class ControllerLink;
}  // namespace daemon
namespace registry::v1 {
class Assignment;
class HeartbeatResponse;
}  // namespace registry::v1
}  // namespace sluice

namespace sluice::trainer {

// The flags that only this daemon has, or that it shares with some.
std::vector<daemon::About::Flag> TrainerFlags();

// The program sluice-trainer: it trains the job that the controller assigns, and serves its
// weights.
class TrainerProgram : public daemon::Program {
 public:
  // The job computes on `cores`.
  TrainerProgram(const daemon::Host& host, std::shared_ptr<CoreShare> cores);
  // INVALID_ARGUMENT: a flag has a value that is not allowed.
  static absl::StatusOr<std::unique_ptr<daemon::Program>> Make(const daemon::Host& host);
  ~TrainerProgram() override;

  std::vector<grpc::Service*> services() override;
  absl::Status Start(const std::string& address, const std::string& ops) override;
  absl::Status CheckReady() override;
  void Drain() override;

 private:
  void OnAssignments(const registry::v1::HeartbeatResponse& response);
  // Starts, ends or replaces the job as `assignment` says. Null means that there is no job.
  void FollowAssignment(const registry::v1::Assignment* assignment);
  void StartJob(const registry::v1::Assignment& assignment);
  void SetCheckpointDir(const std::string& path);
  void ReportStanding(const std::string& job, int64_t incarnation, const JobStanding& standing);
  std::vector<common::v1::WaitEdge> Explain(const std::string& job) const;

  const daemon::Host host_;
  const std::shared_ptr<CoreShare> cores_;
  rpc::CallerTable callers_;  // Who may read the weights.
  RendezvousServer rendezvous_;
  const std::unique_ptr<WeightsServer> weights_;
  const std::unique_ptr<grpc::Service> admin_;
  std::unique_ptr<daemon::ControllerLink> link_;
  daemon::CollectiveAddress ranks_;  // Where other ranks reach this one. Set at start.

  // The folder of the job's checkpoints; empty without a job. The metrics read it too, which may
  // outlive this program.
  struct CheckpointDir {
    Mutex mu;
    std::string path ABSL_GUARDED_BY(mu);
  };
  const std::shared_ptr<CheckpointDir> checkpoint_dir_ = std::make_shared<CheckpointDir>();

  // Of the job, or of the last one. Only the link's thread uses it.
  std::optional<log::JobScope> lines_;

  mutable Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  // Only the link's thread and Drain() replace it.
  std::shared_ptr<AssignedJob> job_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::trainer
