#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sluice::cli {

// A daemon to keep running.
struct DaemonSpec {
  std::string name;               // For example "rollout-0".
  std::string role;               // For example "rollout".
  std::string program;            // Path of the program.
  std::vector<std::string> args;  // Without --listen and --ops.
  std::string listen = "127.0.0.1:0", ops = "127.0.0.1:0";
};

// What the supervisor knows of a daemon.
struct DaemonState {
  std::string name, role, listening, ops, log;
  pid_t pid = -1;      // -1 while it does not run.
  uint64_t start = 0;  // See ProcessStart().
  bool ready = false;  // The daemon has printed its addresses.
  int64_t restarts = 0;
  std::string last_end;  // For example "signal 9 (Killed)"; empty if it never ended.
};

// Starts daemons and keeps them running. A daemon that ends is started again on the same ports,
// after a back-off that doubles each time it ends soon after its start. A daemon is ready once it
// has printed its first line, {"listening": .., "ops": ..}. The supervisor stops only processes
// that it started, and these die with it.
//
// Thread-safe. Owns one thread, which starts all daemons and waits for their end.
class Supervisor {
 public:
  struct Options {
    // Holds NAME.log: the daemon's stderr.
    std::string log_dir;
    absl::Duration first_backoff = absl::Milliseconds(200);
    absl::Duration most_backoff = absl::Seconds(60);
    // A daemon that ran for this long starts again with the first back-off.
    absl::Duration steady = absl::Seconds(10);
    absl::Duration start_timeout = absl::Seconds(60);  // Longest time for Start().
    // Called when a daemon has become ready or has ended, on the supervisor's thread. May be empty.
    std::function<void(const DaemonState&)> changed;
  };
  explicit Supervisor(Options options);
  // Kills the daemons that still run.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Starts the daemons and waits until all of them are ready.
  // FAILED_PRECONDITION: a daemon ended before; the message has the end of its log.
  // DEADLINE_EXCEEDED: they are not ready after start_timeout.
  // CANCELLED: Stop() was called.
  absl::Status Start(const std::vector<DaemonSpec>& specs);

  std::vector<DaemonState> states() const;  // In the order of Start().

  // Sends a signal to a daemon. NOT_FOUND: there is no such daemon; the message lists them.
  // FAILED_PRECONDITION: it does not run now.
  absl::Status Signal(const std::string& name, int signal);

  // Sends SIGTERM to all daemons but the first, waits until they have ended, then sends it to the
  // first: it is the controller, which the others need while they drain. Sends SIGKILL to those
  // that still run after `grace`. No daemon is restarted any more. Idempotent.
  void Stop(absl::Duration grace);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::cli
