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
  std::string name;               // "rollout-0".
  std::string role;               // "rollout".
  std::string program;            // Path.
  std::vector<std::string> args;  // Without --listen and --ops.
  std::string listen = "127.0.0.1:0", ops = "127.0.0.1:0";
};

// What is known of one.
struct DaemonState {
  std::string name, role, listening, ops, log;
  pid_t pid = -1;      // -1: not running now.
  uint64_t start = 0;  // See ProcessStart.
  bool ready = false;  // Has told its addresses.
  int64_t restarts = 0;
  std::string last_end;  // "signal 9 (Killed)"; empty: never ended.
};

// Starts daemons and keeps them running: a dead one is started again on the ports it had, after a
// back-off that doubles with each death in a row. A daemon is ready once it has printed its first
// line, {"listening": .., "ops": ..}. Ends only what it started, and what it started dies with it.
//
// Thread-safe. Owns one thread, `supervise`, which starts and reaps all children.
class Supervisor {
 public:
  struct Options {
    // NAME.log: the daemon's stderr and further stdout.
    std::string log_dir;
    absl::Duration first_backoff = absl::Milliseconds(200);
    absl::Duration most_backoff = absl::Seconds(60);
    // Having run that long, a death is the first in a row.
    absl::Duration steady = absl::Seconds(10);
    absl::Duration start_timeout = absl::Seconds(60);  // Of Start().
    // Ready or dead; on the thread `supervise`, may be empty.
    std::function<void(const DaemonState&)> changed;
  };
  explicit Supervisor(Options options);
  // Kills what still runs.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Starts the daemons and waits until all are ready. FAILED_PRECONDITION: one ended first; the
  // message has the end of its log. DEADLINE_EXCEEDED.
  absl::Status Start(const std::vector<DaemonSpec>& specs);

  std::vector<DaemonState> states() const;  // In the order they were started in.

  // NOT_FOUND: no such daemon; names them. FAILED_PRECONDITION: it does not run now.
  absl::Status Signal(const std::string& name, int signal);

  // SIGTERM to all, and to the first (which the others look to) once they have ended; SIGKILL to
  // what still runs after `grace`. Nothing is restarted any more. Idempotent.
  void Stop(absl::Duration grace);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::cli
