#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rpc/channel.h"
#include "tests/integration/harness/process.h"

namespace sluice::integration {

struct ClusterOptions {
  int rollouts = 1;
  int rewards = 1;
  int trainers = 1;
  int threads = 1;                              // Of each daemon that computes.
  std::map<std::string, std::string> env = {};  // Of all daemons.
};

// The real daemons on loopback, in a fresh folder: controller-0, queue-0, rollout-0.., reward-0..,
// trainer-0... A daemon that is started again keeps its id, its addresses and its data directory,
// as under a supervisor; nothing starts again by itself. The folder is removed at the end, or,
// where the test has failed, kept and named, with the ends of the logs.
class Cluster {
 public:
  explicit Cluster(ClusterOptions options = {});
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Starts all daemons.
  absl::Status Start();

  // Starts a daemon, or starts it again. Its error is what its log says.
  absl::Status Start(const std::string& id, const std::string& failpoints = "");
  // Removes what a daemon that does not run has stored.
  absl::Status LoseData(const std::string& id);
  // kill -9, and waits for the end.
  absl::Status Kill(const std::string& id);
  void Signal(const std::string& id, int signal);
  // Waits until the daemon has died of signal 9, as a failpoint's `kill` does.
  absl::Status AwaitKilled(const std::string& id, absl::Duration timeout);
  // SIGTERM; its exit code.
  absl::StatusOr<int> Terminate(const std::string& id, absl::Duration timeout);
  // Arms a failpoint at its nth hit from now. The daemon may die or stop of it with its answer to
  // this call not yet through: that is not missed here, for AwaitKilled and AwaitStopped tell
  // whether it did.
  absl::Status Arm(const std::string& id, const std::string& failpoint, const std::string& action,
                   int nth);

  const std::string& dir() const { return dir_; }
  std::vector<std::string> ids() const;
  std::string address(const std::string& id) const { return daemons_.at(id).address; }
  std::string ops(const std::string& id) const { return daemons_.at(id).ops; }
  // The newest. Those before it stay until the end: a thread that calls over one while the daemon
  // is started again would otherwise use a channel that is being destroyed, which ends the process
  // with std::bad_weak_ptr.
  std::shared_ptr<rpc::Channel> channel(const std::string& id) const
      ABSL_LOCKS_EXCLUDED(channels_mu_);
  const rpc::Channel& controller() const { return *channel("controller-0"); }
  Process& process(const std::string& id) { return *daemons_.at(id).process; }
  std::string Log(const std::string& id) const;

  // The CLI against this controller, with its `exit`, `out` and `err`.
  absl::StatusOr<Finished> Sluice(std::vector<std::string> args,
                                  absl::Duration timeout = absl::Seconds(60));
  // The same, not waited for; what it says on stderr comes with stdout.
  absl::StatusOr<std::unique_ptr<Process>> StartSluice(std::vector<std::string> args);

 private:
  struct Daemon {
    std::string binary;
    std::string address = "127.0.0.1:0", ops = "127.0.0.1:0";
    std::unique_ptr<Process> process;
    // One for each start; guarded by channels_mu_.
    std::vector<std::shared_ptr<rpc::Channel>> channels;
  };
  std::string LogPath(const std::string& id) const { return dir_ + "/" + id + ".log"; }
  Process::Options SluiceOptions(std::vector<std::string> args);
  void TellFailure() const;

  const std::map<std::string, std::string> env_;
  const int threads_;
  std::string dir_;
  int commands_ = 0;  // Of the CLI.
  std::map<std::string, Daemon> daemons_;
  mutable Mutex channels_mu_;
};

}  // namespace sluice::integration
