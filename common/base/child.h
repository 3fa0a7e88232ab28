#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice {

struct ChildOptions {
  std::vector<std::string> argv;  // argv[0] is the path of the program.
  std::string stderr_path;        // Output is appended to this file; empty: inherit stderr.
  // Give the child pipes for stdin and stderr, in place of an empty stdin and of `stderr_path`.
  bool pipes = false;
  // Changes to this process's environment; an empty value removes the variable.
  std::map<std::string, std::string> env;
  bool only_env = false;         // `env` is the whole environment of the child.
  std::string folder;            // The child starts there; empty: in the folder of this process.
  bool dies_with_parent = true;  // Send SIGKILL when the *thread* that started the child ends.
  // Start a new session, so that neither Ctrl-C nor the end of the terminal reaches the child.
  bool own_session = false;
};

// A child process. Its stdout is a pipe. It has its own process group, so that Ctrl-C at the
// terminal does not reach it directly. The caller closes the descriptors.
struct Child {
  pid_t pid = -1;
  int stdout_fd = -1;  // The reading end of the pipe.
  // With ChildOptions::pipes, the writing end of its stdin and the reading end of its stderr.
  int stdin_fd = -1, stderr_fd = -1;
};

// NOT_FOUND: there is no such program.
// UNAVAILABLE and others: a system call failed.
absl::StatusOr<Child> StartChild(const ChildOptions& options);

// Waits until a child has ended, and returns its status as waitpid() does. It stays a zombie, so
// its pid remains its own. `pidfd` refers to it (pidfd_open).
// DEADLINE_EXCEEDED: it still runs after `timeout`. FAILED_PRECONDITION: somebody has waited for it
// already.
absl::StatusOr<int> AwaitChild(int pidfd, absl::Duration timeout);

// Describes a status from waitpid(): "exit code 3", "signal 9 (Killed)".
std::string WaitStatusText(int status);

// Returns the time at which the process started, in kernel ticks, or 0 if there is no such process.
// With it, a process can be told from a later one with the same pid.
uint64_t ProcessStart(pid_t pid);

// Sends `signal` if `pid` is still the process that started at `start`. NOT_FOUND: that process has
// ended.
absl::Status SignalProcess(pid_t pid, uint64_t start, int signal);

// Waits until the process has ended; it need not be a child. DEADLINE_EXCEEDED: it still runs after
// `timeout`.
absl::Status AwaitEnd(pid_t pid, uint64_t start, absl::Duration timeout);

}  // namespace sluice
