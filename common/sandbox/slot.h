#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "common/base/mutex.h"
#include "common/sandbox/cgroup.h"
#include "common/sandbox/sandbox.h"
#include "common/sandbox/spawn.h"

namespace sluice::sandbox {

// The cgroup of a slot whose lock is in `folder`. Containers may share one tree of cgroups and not
// the folder, so that their slots have the same numbers; the name tells them apart. Who makes the
// folder anew leaves cgroups behind.
std::string CgroupName(const std::string& folder, uint32_t number);

// A place in which one program runs at a time: a number that is locked on this machine, a user of
// this number if this process may change users, a cgroup in T1, and a folder where there are no
// namespaces.
//
// Owns a thread, from which all its programs are started: they end when it does, and in version 1
// they inherit its cgroup. Not thread-safe.
class Slot {
 public:
  // Ends what an earlier owner of the number has left.
  // FAILED_PRECONDITION: the tier does not work here; the message says why.
  static absl::StatusOr<std::unique_ptr<Slot>> Acquire(Tier tier);
  ~Slot();

  // Starts the command with these standard streams. Errors as Launcher::Start().
  absl::StatusOr<Spawned> Start(const Command& command, const std::string& bubblewrap,
                                const BubblewrapParts& parts, const int (&stdio)[3]);

  // Kills all that runs in it, the program `pid` included, which is waited for. Returns whether
  // nothing is left, after at most a second.
  bool Clear(pid_t pid, int pidfd);

 private:
  Slot(Tier tier, uint32_t number, std::string folder, Fd lock);
  absl::Status Prepare();
  // Zombies of the last program would leave the next one fewer processes than its limit.
  absl::Status AwaitNoZombies();
  // Mounts an empty folder of `bytes` for the program.
  absl::Status MakeBox(uint64_t bytes);
  // The descriptors of the plan are those of `held`, and others that live as long as `command`.
  absl::StatusOr<SpawnPlan> Plan(const Command& command, const std::string& bubblewrap,
                                 const BubblewrapParts& parts, const int (&stdio)[3],
                                 std::vector<Fd>* held);
  // Ends the program of `bubblewrap`, and so all processes of its namespace.
  static void KillNamespace(pid_t bubblewrap, int pidfd);
  // Runs `work` on the thread, and waits for its end.
  void RunOnThread(const std::function<void()>& work);
  void Loop();

  const Tier tier_;
  const uint32_t number_;
  const std::string folder_;  // Of the locks and boxes of all slots.
  const Fd lock_;             // Its end frees the number, so it ends last.
  std::optional<uid_t> user_;
  std::unique_ptr<Cgroup> cgroup_;  // T1.
  std::string box_;                 // Without namespaces.
  Left left_ = Left::kNothing;      // kLandlock: of the last program.

  Mutex mu_;
  CondVar changed_;
  const std::function<void()>* work_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace sluice::sandbox
