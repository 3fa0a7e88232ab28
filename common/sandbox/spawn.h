#pragma once

#include <linux/filter.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace sluice::sandbox {

// A process to start, with what it gives up before its program begins.
struct SpawnPlan {
  std::vector<std::string> argv;         // argv[0] is the path of the program.
  std::vector<std::string> environment;  // NAME=VALUE.
  std::string folder = "/";              // Where it starts.
  int stdio[3] = {-1, -1, -1};           // Its standard streams.
  std::vector<int> passed;               // Become its descriptors 3, 4, ..
  std::vector<std::pair<int, rlimit>> limits;
  std::optional<uid_t> user;  // It becomes this user, and the group of the same number.
  int cgroup = -1;            // As Cgroup::clone_fd().
  int landlock = -1;          // A ruleset; -1: none.
  // Applied last, so it must allow execve. Empty: none.
  std::vector<sock_filter> seccomp;
};

struct Spawned {
  pid_t pid = -1;
  Fd pidfd;
};

// Starts the process and waits until its program begins. The process gets SIGKILL when the calling
// thread ends.
// UNAVAILABLE: a step failed; the message names it.
absl::StatusOr<Spawned> Spawn(SpawnPlan plan);

// What is left of a user's processes. Zombies have ended, but count for its RLIMIT_NPROC until
// their parent takes notice.
enum class Left { kNothing, kZombies, kProcesses };

// Kills every process of a user, by a process of this user, and returns what is left after at most
// a second: kProcesses also if this process may not change its user. `user` is not root, and no
// other user's processes are touched.
Left KillAllOf(uid_t user);

// The children of a process.
std::vector<pid_t> ChildrenOf(pid_t parent);

// What is left now. Zombies that are children of this process are taken notice of.
Left FindProcessesOf(uid_t user);

}  // namespace sluice::sandbox
