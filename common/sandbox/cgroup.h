#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/fd.h"
#include "common/sandbox/sandbox.h"

namespace sluice::sandbox {

// A cgroup for the programs of one slot, below the cgroup of this process. Version 1 needs the
// controllers memory and pids, each in a hierarchy that this process may write to; version 2 needs
// them delegated. The controller cpu is used if it is there. Not thread-safe.
class Cgroup {
 public:
  // Makes the cgroup `name`. One of this name that a process left behind is emptied and removed.
  // FAILED_PRECONDITION: the machine has none that this process may use; the message says why.
  static absl::StatusOr<std::unique_ptr<Cgroup>> Make(const std::string& name);
  // Removes the cgroup, which must be empty, and which no thread may be in.
  ~Cgroup();
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;

  absl::Status SetLimits(const Limits& limits);

  // Moving a process costs the kernel some 8 ms for each controller, so processes are born in the
  // cgroup. In version 1 they inherit it from the thread that starts them, once that thread has
  // called this. The thread itself never leaves.
  absl::Status EnterThread();
  // In version 2 the descriptor for CLONE_INTO_CGROUP; -1 in version 1.
  int clone_fd() const { return clone_into_.get(); }

  // Sends SIGKILL to all processes in it but `spared`, and not to the thread that entered.
  void KillAllBut(pid_t spared);
  // Kills all processes in it, but not the thread that entered. Returns whether it is empty then,
  // after at most `within`.
  bool KillAll(absl::Duration within);

 private:
  Cgroup() = default;
  absl::Status MakeV1(const std::string& name, const std::string& memory, const std::string& pids,
                      const std::string& cpu);
  absl::Status MakeV2(const std::string& name, const std::string& own);
  // Makes the folders.
  absl::Status MakeFolders();
  // The tasks in it other than the entered thread.
  std::vector<pid_t> Tasks() const;

  bool v2_ = false;
  std::string memory_, pids_,
      cpu_;            // Folders; the same in version 2. cpu_ is empty if there is none.
  pid_t entered_ = 0;  // The thread that entered, or 0.
  Fd clone_into_;
};

}  // namespace sluice::sandbox
