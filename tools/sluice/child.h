#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice::cli {

struct ChildOptions {
  std::vector<std::string> argv;           // argv[0]: the path of the program.
  std::string stderr_path;                 // Appended to; empty: inherited.
  std::map<std::string, std::string> env;  // Over the own environment; an empty value removes.
  bool dies_with_parent = true;            // SIGKILL once the *thread* that started it ends.
  // Leaves the terminal: Ctrl-C there and its end do not reach it.
  bool own_session = false;
};

// A process that this one started. Its stdout is a pipe; its stdin is empty; it has its own process
// group, so Ctrl-C at the terminal reaches it only through us.
struct Child {
  pid_t pid = -1;
  int stdout_fd = -1;  // The caller closes it.
};

// UNAVAILABLE: the system could not. NOT_FOUND: no such program.
absl::StatusOr<Child> StartChild(const ChildOptions& options);

// "exit code 3", "signal 9 (Killed)" of a wait status.
std::string WaitStatusText(int status);

// The time the process started, in the kernel's ticks: tells it from a later one of the same pid.
// 0: there is no such process.
uint64_t ProcessStart(pid_t pid);

// Sends `signal` if `pid` is still the process that started at `start`. NOT_FOUND: it is gone.
absl::Status SignalProcess(pid_t pid, uint64_t start, int signal);

// Waits until the process, which need not be a child, has ended. DEADLINE_EXCEEDED.
absl::Status AwaitEnd(pid_t pid, uint64_t start, absl::Duration timeout);

}  // namespace sluice::cli
