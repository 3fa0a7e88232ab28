#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/fd.h"
#include "common/base/mutex.h"

// Runs untrusted programs. A program sees /usr, an empty folder of its own and nothing else: no
// other files, no network, no other processes, and a bounded share of the machine.

namespace sluice::sandbox {

// How programs are isolated, the strongest first.
enum class Tier {
  kNamespaces,       // T1: namespaces (bubblewrap), a seccomp filter and a cgroup.
  kNamespacesAlone,  // T1b: the same without a cgroup, so with limits per process.
  kLandlock,         // T1b: a user of their own, a seccomp filter, Landlock, limits per process.
  kUnsafe,           // None: plain processes. Only for debugging, and only if it was asked for.
};
// T1, T1b or none, as jobs name them.
absl::string_view NameOf(Tier tier);
// The name, and what it consists of.
absl::string_view Describe(Tier tier);
// Whether programs of the tier have namespaces of their own.
constexpr bool HasNamespaces(Tier tier) { return tier <= Tier::kNamespacesAlone; }

// What bubblewrap can do here besides namespaces. A container whose /proc is masked has neither;
// programs then see no /proc, and the seccomp filter alone refuses namespaces of their own.
struct BubblewrapParts {
  bool own_proc = true;        // A /proc of the sandbox alone.
  bool disable_userns = true;  // The kernel refuses programs further user namespaces.
};

struct Limits {
  uint64_t memory_bytes = 512ull << 20;       // Of all processes together; in T1b of each process.
  uint32_t pids = 64;                         // Processes and threads.
  double cores = 1;                           // 0: no limit. T1b has no such limit.
  uint64_t address_space_bytes = 4ull << 30;  // Of each process. 0: no limit.
  uint64_t file_bytes = 16ull << 20;          // Of each file.
  uint32_t open_files = 64;                   // Of each process.
  uint64_t stack_bytes = 64ull << 20;
  uint64_t box_bytes = 64ull << 20;  // Of all files in the working folder.
};

// A file or folder that the program can read at the path `to`, if all users can read it. Without
// namespaces both paths are equal.
struct Bind {
  std::string from, to;
  // An O_PATH descriptor of what is shown, for who has checked it: `from` may name something else
  // by the time the program starts. Null: what `from` names then.
  std::shared_ptr<const Fd> opened;
};

struct Command {
  std::vector<std::string> argv;  // argv[0] is an absolute path, below /usr or a bind.
  // All of the environment. PATH is set to /usr/bin unless it is here.
  std::map<std::string, std::string> environment;
  std::vector<Bind> binds;  // Read-only.
  Limits limits;
  // Whether the program may use the network. It has the daemon's network then, so only the operator
  // may grant it. Names are resolved only if the binds have the files of /etc for that.
  bool network = false;
};

// Ends what the programs of killed processes have left on this machine. It takes no time if there
// are none.
void EndLeftovers();

class Slot;
class Launcher;

// A program that runs in a sandbox. Its standard streams are pipes. Not thread-safe, but for
// Wait(), Kill() and I/O on the descriptors.
class Process {
 public:
  ~Process();  // Calls Kill().
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // This side's ends of the pipes. They are blocking, and closed at the end of this object.
  int in() const { return in_.get(); }
  int out() const { return out_.get(); }
  int err() const { return err_.get(); }
  void CloseIn() { in_ = Fd(); }

  // Waits until the program has ended, and returns its status as waitpid() does. A program in T1
  // that a signal ends has the exit code 128 + signal. Processes that it started may remain.
  // DEADLINE_EXCEEDED: it still runs after `timeout`. FAILED_PRECONDITION: Kill() was called.
  absl::StatusOr<int> Wait(absl::Duration timeout);

  // Ends the program and all processes that it has started, and returns its slot. Idempotent.
  // INTERNAL: a process is left after a second. Its slot is never used again.
  absl::Status Kill();

 private:
  friend class Launcher;
  Process(Launcher* launcher, std::unique_ptr<Slot> slot, pid_t pid, Fd pidfd, Fd in, Fd out,
          Fd err);

  Launcher* const launcher_;
  const pid_t pid_;
  const Fd pidfd_;
  Fd in_, out_, err_;

  Mutex mu_;
  std::unique_ptr<Slot> slot_ ABSL_GUARDED_BY(mu_);  // Null: killed.
};

// Starts programs in sandboxes. In T1 the program is the first process of its namespace: when it
// ends, so do all processes that it has started, and these cannot send it signals that it does not
// handle.
//
// Each running one takes a slot, which has a cgroup or a user of its
// own. Thread-safe. It outlives the processes that it started, and has a thread for each slot.
//
// A slot's number is locked for this process (files in /run/sluice-sandbox, or for users other than
// root in a folder of their own).
class Launcher {
 public:
  struct Options {
    uint32_t slots = 1;  // Most programs that run at a time.
    // Whether programs may run without isolation if no tier works.
    bool allow_unsafe = false;
    // The strongest tier that is tried, for tests and for operators.
    Tier strongest = Tier::kNamespaces;
    std::string bubblewrap = "/usr/bin/bwrap";
  };

  // Finds the strongest tier that works, by running a program in each.
  // FAILED_PRECONDITION NO_SANDBOX: no tier works here; the message says why, for each.
  static absl::StatusOr<std::unique_ptr<Launcher>> Make(Options options);
  ~Launcher();

  Tier tier() const { return tier_; }
  // The tier and its parts, for people.
  std::string Describe() const;
  // Why each stronger tier does not work here, and what would make it work: a sentence for each.
  // Empty: tier() is the strongest.
  const std::string& why_not_stronger() const { return why_not_stronger_; }

  // INVALID_ARGUMENT: the command has no argv, or a path that is not absolute.
  // RESOURCE_EXHAUSTED: all slots are taken.
  // UNAVAILABLE: the program could not be started; the message says what failed.
  // Whether a sandbox of T1 was set up shows only in what the program says: if it was not, the
  // program ends with code 1, and a line on err() says why.
  absl::StatusOr<std::unique_ptr<Process>> Start(const Command& command);

  // Slots that were given up because a process in them did not end.
  uint32_t retired() const;

 private:
  friend class Process;
  explicit Launcher(Options options);
  // Whether this tier works here.
  absl::Status Try(Tier tier);
  // Whether programs run, and can be ended.
  absl::Status RunSelfTest();
  absl::Status RunTrue();
  absl::StatusOr<std::unique_ptr<Slot>> TakeSlot();
  void ReturnSlot(std::unique_ptr<Slot> slot, bool empty);
  // Logs, at most once a minute, that programs run without isolation.
  void WarnIfUnsafe();

  const Options options_;
  // Constant after Make().
  Tier tier_ = Tier::kUnsafe;
  BubblewrapParts parts_;
  std::string why_not_stronger_;

  mutable Mutex mu_;
  std::vector<std::unique_ptr<Slot>> free_ ABSL_GUARDED_BY(mu_);
  // taken_ + free_.size() + retired_ <= options_.slots.
  uint32_t taken_ ABSL_GUARDED_BY(mu_) = 0, retired_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Duration warned_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
};

}  // namespace sluice::sandbox
