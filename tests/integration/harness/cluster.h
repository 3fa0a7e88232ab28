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
  // Replicas, of which one leads. More than one need a `store`.
  int controllers = 1;
  std::string store = {};  // The Redis that keeps the jobs (--store). Empty: SQLite.
  int queues = 1;
  int rollouts = 1;
  int rewards = 1;
  int trainers = 1;
  int threads = 1;                              // Of each daemon that computes.
  std::map<std::string, std::string> env = {};  // Of all daemons.
  // More arguments of a daemon, by its id.
  std::map<std::string, std::vector<std::string>> args = {};
  // The daemons have certificates, and this process and the CLI are the operator. There are also
  // certificates of a viewer and of the submitters "submitter", "alice" and "bob". Without
  // certificates a test may speak for any daemon.
  bool tls = false;
  // A daemon that runs on another host (tests/fault/network), by its id. Needs `tls`.
  struct Placement {
    std::string address;  // The host's IP address.
    std::string network;  // The path of its network namespace.
  };
  std::map<std::string, Placement> placements = {};
};

// The real daemons in a fresh folder, on loopback unless they are placed elsewhere: as many of
// controller-0, .., queue-0, .., rollout-0, rollout-1, .., reward-0, .. and trainer-0, .. as the
// options say. A daemon that is started again keeps its id, its addresses and its data directory,
// as under a supervisor, but none is started again by itself. At the end the folder is removed. If
// the test has failed it is kept, and its name and the ends of the logs are printed.
class Cluster {
 public:
  explicit Cluster(ClusterOptions options = {});
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Starts all daemons.
  absl::Status Start();

  // Starts a daemon, or starts it again. UNAVAILABLE: it did not start; the message has its log.
  absl::Status Start(const std::string& id, const std::string& failpoints = "");
  // Removes what a daemon has stored. It must not be running.
  absl::Status RemoveData(const std::string& id);
  // Kills it with SIGKILL and waits for its end.
  absl::Status Kill(const std::string& id);
  void Signal(const std::string& id, int signal);
  // Waits until the daemon has died of signal 9, as a failpoint's `kill` does.
  absl::Status AwaitKilled(const std::string& id, absl::Duration timeout);
  // Sends SIGTERM and returns the exit code.
  absl::StatusOr<int> Terminate(const std::string& id, absl::Duration timeout);
  // Arms a failpoint at its nth hit from now. The daemon may die or stop of it before it answers
  // this call. That is no error here: AwaitKilled() and Process::AwaitStopped() tell whether it
  // did.
  absl::Status Arm(const std::string& id, const std::string& failpoint, const std::string& action,
                   int nth);

  // Waits until a controller other than `but` leads, and returns its id.
  absl::StatusOr<std::string> AwaitLeader(absl::Duration timeout, const std::string& but = "");

  // Keeps the folder and prints the logs at the end, as if a test had failed. For programs that are
  // no tests.
  void KeepFolder() { keep_folder_ = true; }

  const std::string& dir() const { return dir_; }
  std::vector<std::string> ids() const;
  std::string address(const std::string& id) const { return daemons_.at(id).address; }
  std::string ops(const std::string& id) const { return daemons_.at(id).ops; }
  // The newest channel to the daemon. Older ones stay until the end: a thread may call over one
  // while the daemon is started again, and if the channel were destroyed meanwhile, that would end
  // the process with std::bad_weak_ptr.
  std::shared_ptr<rpc::Channel> channel(const std::string& id) const
      ABSL_LOCKS_EXCLUDED(channels_mu_);
  // Goes to the controller that leads.
  const rpc::Channel& controller() const ABSL_LOCKS_EXCLUDED(channels_mu_);
  Process& process(const std::string& id) { return *daemons_.at(id).process; }
  std::string Log(const std::string& id) const;

  // Runs the CLI against this controller.
  absl::StatusOr<Finished> Sluice(std::vector<std::string> args,
                                  absl::Duration timeout = absl::Seconds(60));
  // Starts the CLI and does not wait for its end. Its stderr comes with its stdout.
  absl::StatusOr<std::unique_ptr<Process>> StartSluice(std::vector<std::string> args);

 private:
  struct Daemon {
    std::string binary;
    ClusterOptions::Placement place;
    std::vector<std::string> args;  // Besides those that all daemons have.
    std::string address = "127.0.0.1:0", ops = "127.0.0.1:0";
    std::unique_ptr<Process> process;
    // One for each start; guarded by channels_mu_.
    std::vector<std::shared_ptr<rpc::Channel>> channels;
  };
  std::string LogPath(const std::string& id) const { return dir_ + "/" + id + ".log"; }
  absl::Status IssueCertificates();
  std::vector<std::string> ListenArgs(const Daemon& daemon) const;
  Process::Options SluiceOptions(std::vector<std::string> args);
  void PrintLogs() const;

  // The addresses of all controllers, with commas between.
  std::string controllers() const;

  const int controllers_;
  const std::string store_;
  const std::map<std::string, std::string> env_;
  const int threads_;
  const bool tls_;
  std::string dir_;
  bool keep_folder_ = false;
  int commands_ = 0;  // How often the CLI was run.
  std::map<std::string, Daemon> daemons_;
  mutable Mutex channels_mu_;
  // To the leader of several controllers, whose addresses never change. Null if there is only one.
  std::shared_ptr<rpc::Channel> leader_ ABSL_GUARDED_BY(channels_mu_);
};

}  // namespace sluice::integration
