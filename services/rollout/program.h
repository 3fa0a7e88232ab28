#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/daemon/collective_flags.h"
#include "common/daemon/controller_link.h"
#include "common/daemon/daemon.h"
#include "common/daemon/waits.h"
#include "common/log/job_lines.h"
#include "common/rpc/caller.h"
#include "common/weights/service.h"
#include "services/rollout/flags.h"
#include "services/rollout/http/guests.h"
#include "services/rollout/service.h"
#include "services/rollout/session.h"
#include "sluice/common/v1/common.pb.h"

namespace sluice::rollout::http {
class Keys;
class Server;
}  // namespace sluice::rollout::http
namespace sluice::registry::v1 {
class Assignment;
}  // namespace sluice::registry::v1

namespace sluice::rollout {

// The rollout daemon. It has a session for each job that the controller assigns to it.
class RolloutProgram : public daemon::Program {
 public:
  RolloutProgram(const daemon::Host& host, RolloutOptions options);
  ~RolloutProgram() override;

  std::vector<grpc::Service*> services() override;
  absl::Status Start(const std::string& address, const std::string& ops) override;
  absl::Status CheckReady() override ABSL_LOCKS_EXCLUDED(mu_);
  void Drain() override ABSL_LOCKS_EXCLUDED(mu_);

  // INVALID_ARGUMENT: the value of a flag is wrong, or flags do not go together.
  static absl::StatusOr<std::unique_ptr<daemon::Program>> Make(const daemon::Host& host);

 private:
  struct Job {
    std::string queue;
    std::string name;
    std::shared_ptr<log::JobScope> lines;  // Outlives the session, which writes some.
    std::shared_ptr<Session> session;      // Null: it could not be started.
    std::vector<std::string> models;       // Names of its models in the API.
  };

  absl::Status StartHttp();
  // Makes the job's session reachable through EngineService, and through the API as a model, also
  // with each adapter that fits the model.
  void PublishModels(const std::string& id, Job* job);
  // Ends the job's session and the requests that the API and EngineService made of it.
  void EndJob(const std::string& id, const Job& job, absl::Duration grace, absl::string_view why);
  void EndAllJobs(absl::Duration grace) ABSL_LOCKS_EXCLUDED(mu_);

  // ApplyAssignments() and StartJob() run on the link's `deliver` thread, one at a time.
  void ApplyAssignments(const registry::v1::HeartbeatResponse& assignments)
      ABSL_LOCKS_EXCLUDED(mu_);
  void StartJob(const registry::v1::Assignment& assignment) ABSL_LOCKS_EXCLUDED(mu_);
  // Tells the sessions that end of queues that have another address.
  void FollowQueues(const registry::v1::HeartbeatResponse& assignments)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Sends the controller the job's progress.
  void ReportProgress(const std::string& job, bool ready, PolicyVersion version,
                      const std::string& phase, const std::string& cause);
  std::vector<common::v1::WaitEdge> Explain(const std::string& job) const ABSL_LOCKS_EXCLUDED(mu_);

  const daemon::Host host_;
  const RolloutOptions options_;
  daemon::CollectiveAddress ranks_;  // Where the ranks of broadcasts reach this one. Set at start.
  daemon::Waits waits_;  // Models that are being loaded. Each session has its own waits.
  const std::unique_ptr<grpc::Service> admin_;
  rpc::CallerTable callers_;  // The daemons that may call this one, by job.
  http::Guests guests_;
  EngineServer engine_;
  WeightsServer weights_;
  std::unique_ptr<http::Keys> keys_;
  std::unique_ptr<http::Server> http_;  // Null: no API.
  std::unique_ptr<daemon::ControllerLink> link_;

  mutable Mutex mu_;
  std::map<std::string, Job> jobs_ ABSL_GUARDED_BY(mu_);
  // Those that end because the daemon drains. They still hand over their answers.
  std::map<std::string, Job> leaving_ ABSL_GUARDED_BY(mu_);
  // Id of the job whose model is being loaded, or was loaded last.
  std::string loading_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::rollout
