#include "common/sandbox/spawn.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"

namespace sluice::sandbox {
namespace {

// What a child reports if a step fails.
struct Failure {
  char step[32];
  int error;
};

// The child's part. It shares no lock or memory with the threads of its parent, but was copied from
// them at any moment, so it only makes system calls. It makes those of users and groups directly:
// the functions of glibc would wait for threads that the child does not have.
class Child {
 public:
  Child(SpawnPlan& plan, char* const* argv, char* const* environment, int report, pid_t parent)
      : plan_(plan), argv_(argv), environment_(environment), report_(report), parent_(parent) {}

  [[noreturn]] void Run() {
    ResetSignals();
    setsid();
    PlaceDescriptors();
    for (const auto& [resource, limit] : plan_.limits)
      Check(setrlimit(static_cast<__rlimit_resource>(resource), &limit), "setrlimit");
    if (plan_.user.has_value()) ChangeUser(*plan_.user);

    // A change of the user clears this, so it comes after it.
    Check(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
    if (getppid() != parent_) _exit(127);
    Check(chdir(plan_.folder.c_str()), "chdir");

    if (plan_.landlock >= 0 || !plan_.seccomp.empty())
      Check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    if (plan_.landlock >= 0)
      Check(syscall(SYS_landlock_restrict_self, kLandlock, 0), "landlock_restrict_self");
    if (!plan_.seccomp.empty()) {
      const sock_fprog program{static_cast<uint16_t>(plan_.seccomp.size()),
                               const_cast<sock_filter*>(plan_.seccomp.data())};
      Check(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program), "seccomp");
    }
    execve(argv_[0], argv_, environment_);
    Fail("execve");
  }

 private:
  // Descriptors move to these numbers, out of the way of those that the program gets.
  static constexpr int kReport = 250, kLandlock = 251, kMoved = 260;

  static void ResetSignals() {
    for (int signal = 1; signal < SIGRTMIN; ++signal) ::signal(signal, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
  }

  void PlaceDescriptors() {
    // This copy of the process may write to its vectors, but not allocate.
    const size_t passed = plan_.passed.size();
    for (int& fd : plan_.stdio) fd = fcntl(fd, F_DUPFD_CLOEXEC, kMoved);
    for (int& fd : plan_.passed) fd = fcntl(fd, F_DUPFD_CLOEXEC, kMoved);
    report_ = fcntl(report_, F_DUPFD_CLOEXEC, kMoved);
    const int landlock = plan_.landlock < 0 ? -1 : fcntl(plan_.landlock, F_DUPFD_CLOEXEC, kMoved);
    dup3(report_, kReport, O_CLOEXEC);
    report_ = kReport;
    if (landlock >= 0) dup3(landlock, kLandlock, O_CLOEXEC);
    for (int i = 0; i < 3; ++i) Check(dup2(plan_.stdio[i], i), "dup2");
    for (size_t i = 0; i < passed; ++i)
      Check(dup2(plan_.passed[i], 3 + static_cast<int>(i)), "dup2");
    Check(close_range(static_cast<unsigned>(3 + passed), kReport - 1, 0), "close_range");
    Check(close_range(landlock >= 0 ? kLandlock + 1 : kReport + 1, ~0U, 0), "close_range");
  }

  void ChangeUser(uid_t user) {
    Check(syscall(SYS_setgroups, 0, nullptr), "setgroups");
    Check(syscall(SYS_setresgid, user, user, user), "setresgid");
    Check(syscall(SYS_setresuid, user, user, user), "setresuid");
  }

  void Check(int64_t result, const char* step) {
    if (result < 0) Fail(step);
  }

  [[noreturn]] void Fail(const char* step) {
    Failure failure = {};
    failure.error = errno;
    std::strncpy(failure.step, step, sizeof failure.step - 1);
    (void)!write(report_, &failure, sizeof failure);
    _exit(127);
  }

  SpawnPlan& plan_;
  char* const* const argv_;
  char* const* const environment_;
  int report_;
  const pid_t parent_;
};

std::vector<char*> PointersTo(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// A fork() without the handlers of libraries, which take locks; with a pidfd, into a cgroup. The
// default seccomp profiles of container runtimes refuse clone3(), whose flags they cannot read.
pid_t Fork(int cgroup, int* pidfd) {
  clone_args args = {};
  args.flags = CLONE_PIDFD;
  args.pidfd = reinterpret_cast<uint64_t>(pidfd);
  args.exit_signal = SIGCHLD;
  if (cgroup >= 0) {
    args.flags |= CLONE_INTO_CGROUP;
    args.cgroup = static_cast<uint64_t>(cgroup);
  }
  const auto pid = static_cast<pid_t>(syscall(SYS_clone3, &args, sizeof args));
  if (pid >= 0 || cgroup >= 0 || (errno != ENOSYS && errno != EPERM)) return pid;
  return static_cast<pid_t>(
      syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, nullptr, pidfd, nullptr, nullptr));
}

// Blocks all signals of this thread, so that no handler of the parent runs in the child.
class SignalBlock {
 public:
  SignalBlock() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalBlock() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// What the kernel says of a process; empty if it is gone.
std::string ReadStatus(const std::string& pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Sends SIGKILL to all processes of `user`, from a process that becomes this user, because kill(-1)
// reaches all processes that its caller may signal. False: this process may not change its user.
bool KillOnceAs(uid_t user) {
  int pidfd = -1;
  pid_t pid = -1;
  {
    const SignalBlock block;
    pid = Fork(-1, &pidfd);
    if (pid == 0) {
      if (syscall(SYS_setgroups, 0, nullptr) != 0 ||
          syscall(SYS_setresgid, user, user, user) != 0 ||
          syscall(SYS_setresuid, user, user, user) != 0)
        _exit(1);
      kill(-1, SIGKILL);
      _exit(0);
    }
  }
  const Fd owned(pidfd);
  int status = 0;
  return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

}  // namespace

absl::StatusOr<Spawned> Spawn(SpawnPlan plan) {
  SLUICE_CHECK(plan.passed.size() < 200);  // They must not reach the child's own descriptors.
  const std::vector<char*> argv = PointersTo(plan.argv);
  const std::vector<char*> environment = PointersTo(plan.environment);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return absl::UnavailableError(absl::StrCat("pipe: ", std::strerror(errno)));
  const Fd report(ends[0]);
  Fd child_report(ends[1]);

  int pidfd = -1;
  const pid_t parent = getpid();
  pid_t pid = -1;
  {
    const SignalBlock block;
    pid = Fork(plan.cgroup, &pidfd);
    if (pid == 0) Child(plan, argv.data(), environment.data(), child_report.get(), parent).Run();
  }
  if (pid < 0) return absl::UnavailableError(absl::StrCat("clone3: ", std::strerror(errno)));
  Spawned spawned{pid, Fd(pidfd)};

  // The pipe ends without a report when the program begins.
  child_report = Fd();
  Failure failure = {};
  ssize_t got;
  do {
    got = read(report.get(), &failure, sizeof failure);
  } while (got < 0 && errno == EINTR);
  if (got == 0) return spawned;
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return absl::UnavailableError(absl::StrCat(plan.argv[0], " cannot be started: ", failure.step,
                                             ": ", std::strerror(failure.error)));
}

std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> children;
  const absl::StatusOr<std::vector<std::string>> names = ListDir("/proc");
  if (!names.ok()) return children;
  const std::string of_parent = absl::StrCat("\nPPid:\t", parent, "\n");
  for (const std::string& name : *names) {
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (absl::StrContains(ReadStatus(name), of_parent))
      children.push_back(static_cast<pid_t>(std::stol(name)));
  }
  return children;
}

Left FindProcessesOf(uid_t user) {
  const absl::StatusOr<std::vector<std::string>> names = ListDir("/proc");
  if (!names.ok()) return Left::kProcesses;
  const std::string of_user = absl::StrCat("\nUid:\t", user, "\t");
  Left left = Left::kNothing;
  for (const std::string& name : *names) {
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string status = ReadStatus(name);
    if (!absl::StrContains(status, of_user)) continue;
    const bool ended =
        absl::StrContains(status, "\nState:\tZ") || absl::StrContains(status, "\nState:\tX");
    if (!ended) return Left::kProcesses;
    // They are this process's children if it is the first one of a container.
    const pid_t pid = static_cast<pid_t>(std::stol(name));
    if (waitpid(pid, nullptr, WNOHANG) != pid) left = Left::kZombies;
  }
  return left;
}

Left KillAllOf(uid_t user) {
  SLUICE_CHECK(user != 0);
  const absl::Duration end = Clock::Real()->Monotonic() + absl::Seconds(1);
  while (true) {
    if (!KillOnceAs(user)) return Left::kProcesses;
    const Left left = FindProcessesOf(user);
    if (left != Left::kProcesses || Clock::Real()->Monotonic() >= end) return left;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace sluice::sandbox
