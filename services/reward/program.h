#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/daemon/controller_link.h"
#include "common/daemon/daemon.h"
#include "common/judges/judge_client.h"
#include "common/log/job_lines.h"
#include "common/rpc/caller.h"
#include "common/rpc/cancel.h"
#include "common/run_code/service.h"
#include "services/reward/job_rewards.h"
#include "services/reward/sandboxes.h"
#include "services/reward/score_service.h"
#include "services/reward/worker.h"
#include "sluice/admin/v1/admin.grpc.pb.h"
#include "sluice/registry/v1/registry.pb.h"

namespace sluice::reward {

// The daemon sluice-reward. It runs a worker for each job that the controller assigns, and may
// serve its sandboxes to other daemons, or do that alone.
class RewardProgram : public daemon::Program {
 public:
  // Reads the files of judges and of plug-in servers, if the flags name them. Errors as
  // ReadJudges() and ReadPluginServers().
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
  // How the programs run that jobs bring as plug-ins.
  enum class PluginRights { kNone, kSandbox, kUnconfined };
  static absl::StatusOr<PluginRights> ParseRights(const std::string& word);
  RewardProgram(const daemon::Host& host, Judges judges, PluginRights rights,
                PluginServers plugin_servers, std::unique_ptr<run_code::Client> code_server);
  // Serves sandboxes, if the flags say so.
  absl::Status StartCodeServer();

  struct Job {
    std::string queue;  // HOST:PORT.
    std::string name;
    std::unique_ptr<log::JobScope> lines;  // Outlives the worker, which writes some.
    std::shared_ptr<JobRewards> rewards;   // Outlives the worker, which uses it.
    std::unique_ptr<Worker> worker;        // Null if the job could not be started.
    // Set if it could not because a plug-in server cannot be reached: it is tried again.
    std::optional<registry::v1::Assignment> waits;
    std::string why_waits;
  };
  void ApplyAssignments(const registry::v1::HeartbeatResponse& assignments);
  // Tells the workers that end of queues that have another address.
  void FollowQueues(const registry::v1::HeartbeatResponse& assignments)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Starts the worker of a job, or tells the controller why it cannot be started. `again`: it was
  // tried before.
  void StartJob(const registry::v1::Assignment& assignment, bool again)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(starting_mu_);
  // Tries the jobs that wait for plug-in servers again and again, until the daemon drains. Runs on
  // retry_thread_.
  void RetryJobs();
  // Tries one that is not in `tried`, and adds it. False: there is none, or the daemon drains.
  bool RetryJob(std::set<std::string>* tried);
  // What the job's rewards use on this daemon.
  // With `again`, it was tried before and has told what does not work here.
  // FAILED_PRECONDITION NO_PLUGINS: this daemon runs no programs of jobs, but the job has one.
  // Others as FindJudges(), Sandboxes and JobRewards::Make().
  absl::StatusOr<std::shared_ptr<JobRewards>> MakeRewards(
      const registry::v1::Assignment& assignment, bool again);
  std::unique_ptr<Worker> StartWorker(const registry::v1::Assignment& assignment,
                                      std::shared_ptr<rpc::Channel> queue,
                                      const std::shared_ptr<JobRewards>& rewards);
  // Reports the rows of the job's data that cannot be scored, as events.
  // INVALID_ARGUMENT: no row of a source can be scored.
  absl::Status CheckRows(const registry::v1::Assignment& assignment, const Scorer& scorer);
  // Sets the job's progress at the controller.
  void ReportProgress(const std::string& job, bool ready, const std::string& phase,
                      const std::string& cause);
  // Ends the job's work: the scores of its worker, and those of evaluations.
  void StopJob(const std::string& id, const Job& job);

  // NOT_FOUND: a judge of the job is not in the judges file.
  absl::StatusOr<std::map<std::string, JudgeClient*>> FindJudges(
      const job::v1::JobSpec& spec) const;
  // Sends an event of the job to the controller.
  void RaiseEvent(const std::string& job, common::v1::Severity severity, const char* code,
                  std::string message);

  // What RewardService answers.
  absl::StatusOr<v1::DescribeResponse> Describe(const std::string& job) const;
  void Reload(const std::string& job, const std::string& reward, JobRewards::Reloaded done) const;
  absl::Status NoSuchJob(const std::string& job) const;

  const daemon::Host host_;
  const PluginRights rights_;
  const Judges judges_;                 // Outlives the workers, which ask them.
  const PluginServers plugin_servers_;  // Likewise.
  Sandboxes sandboxes_;                 // Outlives the workers, which run programs there.
  const std::unique_ptr<grpc::Service> admin_, rewards_;
  rpc::CallerTable callers_;                         // The daemons that may call this one, by job.
  std::unique_ptr<daemon::ControllerLink> link_;     // Null without a controller.
  std::unique_ptr<run_code::Service> code_service_;  // Null: sandboxes are not served.
  std::unique_ptr<run_code::HttpServer> code_server_;

  Mutex starting_mu_;  // One thread starts jobs at a time. Locked before mu_.
  mutable Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Job> jobs_ ABSL_GUARDED_BY(mu_);  // By job id.
  // Those that end because the daemon drains. They still send their scores.
  std::map<std::string, Job> leaving_ ABSL_GUARDED_BY(mu_);
  ScoreServer scores_{&callers_};  // Destroyed before the jobs, whose plug-ins its threads use.
  rpc::Cancel stop_retries_;
  std::thread retry_thread_;
};

}  // namespace sluice::reward
