#include "tests/integration/harness/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/fd.h"
#include "common/base/file.h"
#include "common/base/status.h"

extern char** environ;

namespace sluice::integration {
namespace {

// Returns true if `fd` is ready, false if it is not before `deadline`.
bool AwaitReadable(int fd, absl::Time deadline) {
  while (true) {
    const int64_t left =
        absl::ToInt64Milliseconds(std::max(absl::ZeroDuration(), deadline - absl::Now()));
    pollfd entry{.fd = fd, .events = POLLIN};
    const int ready = poll(&entry, 1, static_cast<int>(std::min<int64_t>(left, 1 << 30)));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

// The environment of this process, with the variables in `over` added or replaced.
std::vector<std::string> Environment(const std::map<std::string, std::string>& over) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!over.contains(text.substr(0, text.find('=')))) all.push_back(text);
  }
  for (const auto& [name, value] : over) all.push_back(absl::StrCat(name, "=", value));
  return all;
}

std::vector<char*> PointersTo(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Process>> Process::Start(const Options& options) {
  const std::string path = absl::StartsWith(options.binary, "/")
                               ? options.binary
                               : absl::StrCat(SLUICE_BIN_DIR, "/", options.binary);
  if (!PathExists(path)) return absl::NotFoundError(absl::StrCat("no program ", path));

  std::vector<std::string> args = {path};
  args.insert(args.end(), options.args.begin(), options.args.end());
  std::vector<std::string> env = Environment(options.env);
  const std::vector<char*> argv = PointersTo(args), envp = PointersTo(env);

  const bool merged = options.log.empty();
  const int log =
      merged ? -1 : open(options.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (!merged && log < 0) return ErrnoStatus(errno, options.log);

  const Fd network(options.network.empty() ? -1
                                           : open(options.network.c_str(), O_RDONLY | O_CLOEXEC));
  if (!options.network.empty() && !network.valid()) return ErrnoStatus(errno, options.network);

  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const pid_t parent = getpid();

  // Between fork and exec only async-signal-safe calls: this process has threads.
  const pid_t pid = fork();
  if (pid == 0) {
    // The child dies with the thread that starts it. It has a process group of its own, so that
    // Ctrl-C does not reach it. It must not inherit that thread's blocked signals.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    dup2(out[1], STDOUT_FILENO);
    dup2(merged ? out[1] : log, STDERR_FILENO);
    const bool there = (options.working_dir.empty() || chdir(options.working_dir.c_str()) == 0) &&
                       (!network.valid() || setns(network.get(), CLONE_NEWNET) == 0);
    // The parent may have died before prctl().
    if (getppid() == parent && there) execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }

  const int error = errno;
  close(out[1]);
  if (!merged) close(log);
  if (pid < 0) {
    close(out[0]);
    return ErrnoStatus(error, "fork");
  }
  return std::unique_ptr<Process>(
      new Process(pid, static_cast<int>(syscall(SYS_pidfd_open, pid, 0)), out[0]));
}

Process::~Process() {
  Signal(SIGKILL);
  (void)Await(absl::Seconds(10));
  close(out_);
  close(pidfd_);
}

void Process::Signal(int signal) {
  if (!ended_) kill(pid_, signal);
}

bool Process::running() { return !Await(absl::ZeroDuration()).ok(); }

absl::StatusOr<int> Process::Await(absl::Duration timeout) {
  if (ended_) return exit_;
  if (!AwaitReadable(pidfd_, absl::Now() + timeout)) {
    return absl::DeadlineExceededError(
        absl::StrCat("process ", pid_, " still runs after ", absl::FormatDuration(timeout)));
  }
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  ended_ = true;
  exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return exit_;
}

absl::Status Process::AwaitStopped() {
  siginfo_t info{};
  // WNOWAIT leaves the exit status to Await().
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT) != 0 &&
         errno == EINTR) {
  }
  return info.si_code == CLD_STOPPED
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat("process ", pid_, " has ended"));
}

absl::StatusOr<bool> Process::ReadMore(absl::Time deadline) {
  if (!AwaitReadable(out_, deadline))
    return absl::DeadlineExceededError(absl::StrCat("process ", pid_, " said nothing on stdout"));
  char bytes[4096];
  const ssize_t n = read(out_, bytes, sizeof bytes);
  if (n <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(n));
  return true;
}

absl::StatusOr<std::string> Process::ReadLine(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (buffer_.find('\n') == std::string::npos) {
    SLUICE_ASSIGN_OR_RETURN(const bool more, ReadMore(deadline));
    if (!more) return absl::OutOfRangeError(absl::StrCat("process ", pid_, " ended its stdout"));
  }
  const size_t end = buffer_.find('\n');
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return line;
}

absl::StatusOr<std::string> Process::ReadAll(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    SLUICE_ASSIGN_OR_RETURN(const bool more, ReadMore(deadline));
    if (!more) return std::exchange(buffer_, "");
  }
}

absl::StatusOr<Finished> RunToEnd(const Process::Options& options, absl::Duration timeout) {
  // Start() appends to the log.
  (void)unlink(options.log.c_str());
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Process> process, Process::Start(options));
  Finished finished;
  SLUICE_ASSIGN_OR_RETURN(finished.out, process->ReadAll(timeout));
  SLUICE_ASSIGN_OR_RETURN(finished.exit, process->Await(timeout));
  SLUICE_ASSIGN_OR_RETURN(finished.err, ReadFile(options.log));
  return finished;
}

}  // namespace sluice::integration
