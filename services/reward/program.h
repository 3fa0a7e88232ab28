#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/daemon/controller_link.h"
#include "common/daemon/daemon.h"
#include "common/judges/judge_client.h"
#include "common/log/job_lines.h"
#include "common/plugins/plugin_host.h"
#include "common/run_code/service.h"
#include "services/reward/sandboxes.h"
#include "services/reward/worker.h"
#include "sluice/admin/v1/admin.grpc.pb.h"

namespace sluice::reward {

// The daemon sluice-reward. It runs a worker for each job that the controller assigns, and may
// serve its sandboxes to other daemons, or do that alone.
class RewardProgram : public daemon::Program {
 public:
  // Reads the judges file, if the flags name one. Errors as ReadJudges().
  // INVALID_ARGUMENT: --plugins is no known word, or --unsafe-no-sandbox while other machines can
  // reach the daemon.
  static absl::StatusOr<std::unique_ptr<RewardProgram>> Make(const daemon::Host& host);
  ~RewardProgram() override;

  std::vector<grpc::Service*> services() override;
  absl::Status Start(const std::string& address, const std::string& ops) override;
  absl::Status CheckReady() override;
  void Drain() override;

  // What the worker of `job` waits for, for `sluice why`.
  std::vector<common::v1::WaitEdge> Explain(const std::string& job) const;

 private:
  using Judges = std::map<std::string, std::unique_ptr<JudgeClient>>;  // By name.
  using Plugins = std::map<std::string, std::unique_ptr<PluginHost>>;  // By their args.
  // How the plug-ins of jobs run.
  enum class PluginRights { kNone, kSandbox, kUnconfined };
  static absl::StatusOr<PluginRights> ParseRights(const std::string& word);
  RewardProgram(const daemon::Host& host, Judges judges, PluginRights rights,
                std::unique_ptr<run_code::Client> code_server);
  // Serves sandboxes, if the flags say so.
  absl::Status StartCodeServer();

  struct Job {
    std::string queue;  // HOST:PORT.
    std::string name;
    std::unique_ptr<log::JobScope> lines;  // Outlives the worker, which writes some.
    std::unique_ptr<Plugins> plugins;      // Outlive the worker, which asks them.
    Sandboxes::OfJob sandboxes;            // Outlives the worker, which uses them.
    std::unique_ptr<Worker> worker;        // Null if the job could not be started.
  };
  void ApplyAssignments(const registry::v1::HeartbeatResponse& assignments);
  // Tells the workers that end of queues that have another address.
  void FollowQueues(const registry::v1::HeartbeatResponse& assignments)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Starts the worker of a job, or tells the controller why it cannot be started.
  void StartJob(const registry::v1::Assignment& assignment);
  // Reports the rows of the job's data that cannot be scored, as events.
  // INVALID_ARGUMENT: no row of a source can be scored.
  absl::Status CheckRows(const registry::v1::Assignment& assignment, const Scorer& scorer);
  // Sets the job's progress at the controller.
  void ReportProgress(const std::string& job, bool ready, const std::string& phase,
                      const std::string& cause);

  // NOT_FOUND: a judge of the job is not in the judges file.
  absl::StatusOr<std::vector<JudgeClient*>> FindJudges(const job::v1::JobSpec& spec) const;

  // Starts the plug-ins of a job.
  // FAILED_PRECONDITION NO_PLUGINS: this daemon runs none.
  // Others as Sandboxes::MakePluginLaunch() and PluginHost::Make().
  absl::Status StartPlugins(const registry::v1::Assignment& assignment, Plugins* plugins);

  const daemon::Host host_;
  const PluginRights rights_;
  const Judges judges_;  // Outlives the workers, which ask them.
  Sandboxes sandboxes_;  // Outlives the workers, which run programs there.
  const std::unique_ptr<grpc::Service> admin_;
  std::unique_ptr<daemon::ControllerLink> link_;     // Null without a controller.
  std::unique_ptr<run_code::Service> code_service_;  // Null: sandboxes are not served.
  std::unique_ptr<run_code::HttpServer> code_server_;

  mutable Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Job> jobs_ ABSL_GUARDED_BY(mu_);  // By job id.
  // Those that end because the daemon drains. They still send their scores.
  std::map<std::string, Job> leaving_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::reward
