#include "common/base/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/file.h"
#include "common/base/pipe.h"
#include "common/base/status.h"

extern char** environ;

namespace sluice {
namespace {

// Returns the environment of the child.
std::vector<std::string> ChildEnvironment(const ChildOptions& options) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr && !options.only_env; ++entry) {
    const std::string name = std::string(*entry).substr(0, std::strcspn(*entry, "="));
    if (options.env.count(name) == 0) out.push_back(*entry);
  }
  for (const auto& [name, value] : options.env) {
    if (!value.empty()) out.push_back(absl::StrCat(name, "=", value));
  }
  return out;
}

std::vector<char*> ChildPointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Waits until the process that `pidfd` refers to has ended. `who` begins the message of an error.
absl::Status AwaitPidfd(int pidfd, absl::string_view who, absl::Duration timeout) {
  pollfd wait{pidfd, POLLIN, 0};
  const absl::Duration end = Clock::Real()->Monotonic() + timeout;
  while (true) {
    const absl::Duration left = end - Clock::Real()->Monotonic();
    const int64_t ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(left), 0, 1 << 30);
    const int ready = poll(&wait, 1, static_cast<int>(ms));
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    if (ready > 0) return absl::OkStatus();
    if (ready == 0 && left <= absl::Milliseconds(1)) {
      return absl::DeadlineExceededError(
          absl::StrCat(who, " still runs after ", absl::FormatDuration(timeout)));
    }
  }
}

}  // namespace

absl::StatusOr<Child> StartChild(const ChildOptions& options) {
  if (access(options.argv[0].c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat("no program ", options.argv[0], ": ", std::strerror(errno)));
  }
  // Prepare everything before fork(): in the child of a process with threads, only system calls are
  // safe.
  const std::vector<std::string> environment = ChildEnvironment(options);
  std::vector<char*> argv = ChildPointers(options.argv), envp = ChildPointers(environment);
  const char* err_path = options.stderr_path.empty() ? nullptr : options.stderr_path.c_str();
  const pid_t parent = getpid();
  const char* folder = options.folder.empty() ? nullptr : options.folder.c_str();
  Pipe in, err;
  SLUICE_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  if (options.pipes) {
    SLUICE_ASSIGN_OR_RETURN(in, MakePipe());
    SLUICE_ASSIGN_OR_RETURN(err, MakePipe());
  }

  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");

  if (pid == 0) {
    // In the child. Nothing here may allocate memory or take a lock.
    if (options.own_session) setsid();
    else setpgid(0, 0);
    if (options.dies_with_parent) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      // The parent may have ended before prctl() took effect.
      if (getppid() != parent) _exit(127);
    }
    // The child must not inherit the signal mask of the thread that forks.
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    signal(SIGPIPE, SIG_DFL);
    if (folder != nullptr && chdir(folder) != 0) _exit(127);
    dup2(in.read.valid() ? in.read.get() : open("/dev/null", O_RDONLY), 0);
    dup2(out.write.get(), 1);
    if (err.write.valid()) {
      dup2(err.write.get(), 2);
    } else if (err_path != nullptr) {
      const int err = open(err_path, O_WRONLY | O_CREAT | O_APPEND, 0644);
      if (err < 0) _exit(127);
      dup2(err, 2);
    }
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }

  return Child{pid, out.read.Release(), in.write.Release(), err.read.Release()};
}

absl::StatusOr<int> AwaitChild(int pidfd, absl::Duration timeout) {
  SLUICE_RETURN_IF_ERROR(AwaitPidfd(pidfd, "the program", timeout));
  siginfo_t info = {};
  if (waitid(P_PIDFD, static_cast<id_t>(pidfd), &info, WEXITED | WNOWAIT | WNOHANG) != 0)
    return absl::FailedPreconditionError("the program was killed");
  return info.si_code == CLD_EXITED ? W_EXITCODE(info.si_status, 0) : W_EXITCODE(0, info.si_status);
}

std::string WaitStatusText(int status) {
  if (WIFSIGNALED(status))
    return absl::StrCat("signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  return absl::StrCat("exit code ", WEXITSTATUS(status));
}

uint64_t ProcessStart(pid_t pid) {
  // Files in /proc have size 0, so ReadFile() would find them empty.
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string stat;
  if (!std::getline(file, stat)) return 0;
  const size_t name_end = stat.rfind(") ");
  if (name_end == std::string::npos) return 0;
  // The fields after the program's name begin with the third, the state. The 22nd is the start
  // time. A zombie (Z) counts as ended.
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(stat).substr(name_end + 2), ' ');
  uint64_t start = 0;
  if (fields.size() < 20 || fields[0] == "Z" || !absl::SimpleAtoi(fields[19], &start)) return 0;
  return start;
}

absl::Status SignalProcess(pid_t pid, uint64_t start, int signal) {
  if (start == 0 || ProcessStart(pid) != start)
    return absl::NotFoundError(absl::StrCat("process ", pid, " is gone"));
  if (kill(pid, signal) != 0) return ErrnoStatus(errno, absl::StrCat("signal to process ", pid));
  return absl::OkStatus();
}

// A pidfd refers to one process, even if its pid is used again.
absl::Status AwaitEnd(pid_t pid, uint64_t start, absl::Duration timeout) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return errno == ESRCH ? absl::OkStatus() : ErrnoStatus(errno, "pidfd_open");
  absl::Status status;
  if (ProcessStart(pid) == start) status = AwaitPidfd(fd, absl::StrCat("process ", pid), timeout);
  close(fd);
  return status;
}

}  // namespace sluice
