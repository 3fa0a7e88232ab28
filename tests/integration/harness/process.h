#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice::integration {

// How long a test waits for what takes seconds even on a busy machine.
inline constexpr absl::Duration kLong = absl::Minutes(2);

// A child process. Its stdout comes through a pipe; its stderr is appended to a file or comes with
// stdout. It dies with the thread that started it and with this object. Nothing here sleeps to wait
// for an exit or for output.
class Process {
 public:
  struct Options {
    std::string binary;  // A name in SLUICE_BIN_DIR, or an absolute path.
    std::vector<std::string> args;
    std::map<std::string, std::string> env;  // Added to the test's own, or in place of it.
    std::string log;                         // Path for stderr; empty: it goes with stdout.
    std::string working_dir;                 // Empty: the test's.
    std::string network;                     // Path of a network namespace. Empty: the test's.
  };

  static absl::StatusOr<std::unique_ptr<Process>> Start(const Options& options);
  // Kills it if it still runs.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  bool running();

  // Does nothing if the process has ended.
  void Signal(int signal);

  // Waits until it is stopped (SIGSTOP). INTERNAL: it has ended instead.
  absl::Status AwaitStopped();
  // Waits for its end. Returns its exit code, or -N for signal N. DEADLINE_EXCEEDED: it still runs.
  absl::StatusOr<int> Await(absl::Duration timeout);

  // The next line of stdout, without its newline. OUT_OF_RANGE: stdout has ended.
  // DEADLINE_EXCEEDED: no whole line came in time.
  absl::StatusOr<std::string> ReadLine(absl::Duration timeout);
  // All of stdout that is left. DEADLINE_EXCEEDED: it has not ended.
  absl::StatusOr<std::string> ReadAll(absl::Duration timeout);

 private:
  Process(pid_t pid, int pidfd, int out) : pid_(pid), pidfd_(pidfd), out_(out) {}
  absl::StatusOr<bool> ReadMore(absl::Time deadline);  // False: stdout has ended.

  const pid_t pid_;
  const int pidfd_;
  const int out_;
  std::string buffer_;
  bool ended_ = false;
  int exit_ = 0;  // As Await() returns it.
};

// A program that ran to its end.
struct Finished {
  int exit = 0;  // As Process::Await() returns it.
  std::string out, err;
};
// Runs a program to its end. `options.log` must be set: `err` is read from it.
absl::StatusOr<Finished> RunToEnd(const Process::Options& options, absl::Duration timeout);

}  // namespace sluice::integration
