#include "tools/sluice/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/child.h"
#include "common/base/file.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

constexpr size_t kMaxFirstLine = 4096;

// Returns what a daemon said last: the lines at the end of its log that are meant for people (not
// JSON), else the last lines.
std::string LogTail(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok() || text->empty()) return "it wrote no log";
  std::vector<std::string> lines = absl::StrSplit(*text, '\n', absl::SkipWhitespace());
  size_t from = lines.size();
  while (from > 0 && lines.size() - from < 5 && lines[from - 1][0] != '{') --from;
  if (from == lines.size()) from = lines.size() > 5 ? lines.size() - 5 : 0;
  lines.erase(lines.begin(), lines.begin() + static_cast<long>(from));
  return absl::StrCat("the end of its log:\n  ", absl::StrJoin(lines, "\n  "));
}

}  // namespace

struct Supervisor::Impl {
  struct Daemon {
    DaemonSpec spec;
    DaemonState state;
    // Reads the child's stdout; its end means that the child has ended. -1: not running.
    int fd = -1;
    std::string line;  // The part of the first line read so far.
    // How often it has ended in a row. After a run of at least Options::steady, an end counts as
    // the first again.
    int deaths = 0;
    absl::Time started;
    absl::Time due;  // When to start it (again); infinite future: not at all.
  };

  explicit Impl(Options o) : options(std::move(o)), wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    thread = std::thread([this] { Supervise(); });
  }
  ~Impl() {
    {
      MutexLock lock(&mu);
      closing = true;
    }
    Wake();
    thread.join();
    close(wake);
  }

  void Wake() {
    const uint64_t one = 1;
    (void)!write(wake, &one, sizeof one);
  }

  void Supervise() ABSL_LOCKS_EXCLUDED(mu);
  void StartDueDaemons() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void LaunchDaemon(Daemon& daemon) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Reads the daemon's stdout. Returns true if the daemon has just become ready or has ended.
  bool ReadOutput(Daemon& daemon) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Sends a signal to a running daemon. Reap() has not waited for it, so its pid cannot belong to
  // another process.
  static void SendSignal(const Daemon& daemon, int signal);
  // Takes the exit status of a daemon that has ended, and plans its restart.
  void Reap(Daemon& daemon) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Reads the addresses from the first line.
  void ParseFirstLine(Daemon& daemon) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const Options options;
  // An eventfd that ends the poll() of the thread.
  const int wake;
  mutable Mutex mu;
  CondVar changed;  // Signalled when any state changes.
  std::vector<std::unique_ptr<Daemon>> daemons ABSL_GUARDED_BY(mu);
  bool stopping ABSL_GUARDED_BY(mu) = false;
  bool closing ABSL_GUARDED_BY(mu) = false;
  std::thread thread;
};

void Supervisor::Impl::LaunchDaemon(Daemon& daemon) {
  ChildOptions child;
  child.argv = {daemon.spec.program};
  child.argv.insert(child.argv.end(), daemon.spec.args.begin(), daemon.spec.args.end());
  // Use the ports it had before, as told in its first line, so that the other daemons find it
  // again.
  const std::string& listen =
      daemon.state.listening.empty() ? daemon.spec.listen : daemon.state.listening;
  const std::string& ops = daemon.state.ops.empty() ? daemon.spec.ops : daemon.state.ops;
  child.argv.insert(child.argv.end(), {"--listen", listen, "--ops", ops});
  child.stderr_path = daemon.state.log;
  // A failpoint set in the environment should trigger only once, so restarts run without it.
  if (daemon.deaths > 0) child.env["SLUICE_FAILPOINTS"] = "";

  daemon.due = absl::InfiniteFuture();
  daemon.started = absl::Now();
  daemon.line.clear();
  const absl::StatusOr<Child> started = StartChild(child);
  if (!started.ok()) {
    // The program cannot be started: try again only after the longest back-off.
    daemon.state.last_end = std::string(started.status().message());
    ++daemon.deaths;
    daemon.due = absl::Now() + options.most_backoff;
    return;
  }

  fcntl(started->stdout_fd, F_SETFL, O_NONBLOCK);
  daemon.fd = started->stdout_fd;
  daemon.state.pid = started->pid;
  daemon.state.start = ProcessStart(started->pid);
}

void Supervisor::Impl::StartDueDaemons() {
  for (const auto& daemon : daemons) {
    if (!stopping && daemon->fd < 0 && daemon->due <= absl::Now()) {
      if (daemon->deaths > 0) ++daemon->state.restarts;
      LaunchDaemon(*daemon);
      changed.NotifyAll();
    }
  }
}

void Supervisor::Impl::ParseFirstLine(Daemon& daemon) {
  const nlohmann::json line = nlohmann::json::parse(daemon.line, nullptr, false);
  if (!line.is_object() || !line.contains("listening")) return;
  daemon.state.listening = line.value("listening", "");
  daemon.state.ops = line.value("ops", "");
  daemon.state.ready = true;
}

bool Supervisor::Impl::ReadOutput(Daemon& daemon) {
  const bool was_ready = daemon.state.ready;
  char bytes[4096];
  for (;;) {
    const ssize_t n = read(daemon.fd, bytes, sizeof bytes);
    if (n > 0) {
      // Only the first line is of interest.
      if (daemon.state.ready || daemon.line.size() > kMaxFirstLine) continue;
      daemon.line.append(bytes, n);
      const size_t end = daemon.line.find('\n');
      if (end == std::string::npos) continue;
      daemon.line.resize(end);
      ParseFirstLine(daemon);
    } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      return daemon.state.ready != was_ready;
    } else {
      Reap(daemon);
      return true;
    }
  }
}

void Supervisor::Impl::SendSignal(const Daemon& daemon, int signal) {
  // kill(-1) would send the signal to every process of the user.
  SLUICE_CHECK(daemon.fd >= 0 && daemon.state.pid > 0);
  kill(daemon.state.pid, signal);
}

void Supervisor::Impl::Reap(Daemon& daemon) {
  SLUICE_CHECK(daemon.fd >= 0 && daemon.state.pid > 0);
  close(daemon.fd);
  daemon.fd = -1;
  int status = 0;
  waitpid(daemon.state.pid, &status, 0);
  daemon.state.pid = -1;
  daemon.state.ready = false;
  daemon.state.last_end = WaitStatusText(status);
  // A daemon that ran long enough starts with the first back-off again.
  daemon.deaths = absl::Now() - daemon.started >= options.steady ? 1 : daemon.deaths + 1;
  absl::Duration wait = options.first_backoff;
  for (int i = 1; i < daemon.deaths && wait < options.most_backoff; ++i) wait *= 2;
  daemon.due = absl::Now() + std::min(wait, options.most_backoff);
}

void Supervisor::Impl::Supervise() {
  for (;;) {
    std::vector<pollfd> polled{{wake, POLLIN, 0}};
    std::vector<Daemon*> polled_daemons{nullptr};
    absl::Time next = absl::InfiniteFuture();
    {
      MutexLock lock(&mu);
      if (closing) {
        // Kill and wait for all children before the thread ends.
        for (const auto& daemon : daemons) {
          if (daemon->fd < 0) continue;
          SendSignal(*daemon, SIGKILL);
          Reap(*daemon);
        }
        return;
      }
      StartDueDaemons();
      // Watch the output of running daemons, and wake up for the next restart.
      for (const auto& daemon : daemons) {
        if (daemon->fd >= 0) {
          polled.push_back({daemon->fd, POLLIN, 0});
          polled_daemons.push_back(daemon.get());
        } else if (!stopping) {
          next = std::min(next, daemon->due);
        }
      }
    }

    const int timeout = next == absl::InfiniteFuture()
                            ? -1
                            : static_cast<int>(std::max<int64_t>(
                                  0, absl::ToInt64Milliseconds(next - absl::Now()) + 1));
    poll(polled.data(), polled.size(), timeout);
    uint64_t count;
    (void)!read(wake, &count, sizeof count);

    std::vector<DaemonState> changes;
    {
      MutexLock lock(&mu);
      for (size_t i = 1; i < polled.size(); ++i) {
        if (polled[i].revents != 0 && ReadOutput(*polled_daemons[i]))
          changes.push_back(polled_daemons[i]->state);
      }
      if (!changes.empty()) changed.NotifyAll();
    }
    // Called without the lock, because the callback may call states().
    for (const DaemonState& state : changes) {
      if (options.changed) options.changed(state);
    }
  }
}

Supervisor::Supervisor(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Supervisor::~Supervisor() = default;

absl::Status Supervisor::Start(const std::vector<DaemonSpec>& specs) {
  MutexLock lock(&impl_->mu);
  std::vector<Impl::Daemon*> mine;
  for (const DaemonSpec& spec : specs) {
    auto daemon = std::make_unique<Impl::Daemon>();
    daemon->spec = spec;
    daemon->state.name = spec.name;
    daemon->state.role = spec.role;
    daemon->state.log = absl::StrCat(impl_->options.log_dir, "/", spec.name, ".log");
    daemon->due = absl::InfinitePast();
    mine.push_back(daemon.get());
    impl_->daemons.push_back(std::move(daemon));
  }

  impl_->Wake();

  const absl::Time deadline = absl::Now() + impl_->options.start_timeout;
  for (;;) {
    bool ready = true;
    // One end is a failure, even though the daemon will be started again.
    for (const Impl::Daemon* daemon : mine) {
      if (!daemon->state.last_end.empty()) {
        return absl::FailedPreconditionError(
            absl::StrCat(daemon->state.name, " did not start: ", daemon->state.last_end, "; ",
                         LogTail(daemon->state.log)));
      }
      ready = ready && daemon->state.ready;
    }
    if (ready) return absl::OkStatus();
    if (impl_->stopping) return absl::CancelledError("stopped while starting");
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "daemons are not ready after ", absl::FormatDuration(impl_->options.start_timeout),
          "; their logs are in ", impl_->options.log_dir));
    }
    impl_->changed.WaitFor(&impl_->mu, deadline - absl::Now());
  }
}

std::vector<DaemonState> Supervisor::states() const {
  MutexLock lock(&impl_->mu);
  std::vector<DaemonState> states;
  for (const auto& daemon : impl_->daemons) states.push_back(daemon->state);
  return states;
}

absl::Status Supervisor::Signal(const std::string& name, int signal) {
  MutexLock lock(&impl_->mu);
  std::vector<std::string> names;
  for (const auto& daemon : impl_->daemons) {
    names.push_back(daemon->spec.name);
    if (daemon->spec.name != name) continue;
    if (daemon->fd < 0)
      return absl::FailedPreconditionError(
          absl::StrCat(name, " does not run now: ", daemon->state.last_end));
    Impl::SendSignal(*daemon, signal);
    return absl::OkStatus();
  }
  return absl::NotFoundError(
      absl::StrCat("no daemon ", name, "; there are ", absl::StrJoin(names, ", ")));
}

void Supervisor::Stop(absl::Duration grace) {
  MutexLock lock(&impl_->mu);
  impl_->stopping = true;
  impl_->changed.NotifyAll();
  const absl::Time deadline = absl::Now() + grace;
  // Sends SIGTERM to daemons [from, to) and waits for their end; sends SIGKILL at the deadline.
  const auto end = [&](size_t from, size_t to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_->mu) {
    const auto signal_all = [&](int signal) {
      int running = 0;
      for (size_t i = from; i < to; ++i) {
        if (impl_->daemons[i]->fd < 0) continue;
        if (signal != 0) Impl::SendSignal(*impl_->daemons[i], signal);
        ++running;
      }
      return running;
    };
    signal_all(SIGTERM);
    while (signal_all(0) > 0 && absl::Now() < deadline)
      impl_->changed.WaitFor(&impl_->mu, deadline - absl::Now());
    signal_all(SIGKILL);
    while (signal_all(0) > 0) impl_->changed.Wait(&impl_->mu);
  };

  // The controller (number 0) ends last: the others need it while they drain.
  const size_t count = impl_->daemons.size();
  end(std::min<size_t>(1, count), count);
  end(0, count);
}

}  // namespace sluice::cli
