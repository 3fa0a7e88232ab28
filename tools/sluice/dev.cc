#include "tools/sluice/dev.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/child.h"
#include "common/base/file.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "tools/sluice/fleet.h"
#include "tools/sluice/interrupts.h"
#include "tools/sluice/output.h"
#include "tools/sluice/progress.h"
#include "tools/sluice/supervisor.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

constexpr absl::Duration kGrace = absl::Seconds(15);  // Time for daemons to drain.

void PrintFleet(const FleetState& state, const std::string& output) {
  if (IsData(output))
    return PrintData(nlohmann::ordered_json::parse(FleetStateJson(state)), output);
  if (output == "name") {
    for (const DaemonState& daemon : state.daemons) std::printf("%s\n", daemon.name.c_str());
    return;
  }
  std::vector<std::vector<std::string>> rows{
      {"DAEMON", "STATE", "PID", "LISTENING", "METRICS", "RESTARTS", "LAST END"}};
  for (const DaemonState& daemon : state.daemons) {
    rows.push_back({daemon.name,
                    daemon.ready     ? "ready"
                    : daemon.pid > 0 ? "starting"
                                     : "down",
                    daemon.pid > 0 ? absl::StrCat(daemon.pid) : "-", daemon.listening, daemon.ops,
                    absl::StrCat(daemon.restarts),
                    daemon.last_end.empty() ? "-" : daemon.last_end});
  }
  std::fputs(Table(rows).c_str(), stdout);
}

// Says where the controller's web page is.
void PrintPage(const FleetState& state) {
  for (const DaemonState& daemon : state.daemons) {
    if (daemon.role == "controller")
      std::fprintf(stderr, "watch it in a browser: http://%s/ui\n", daemon.ops.c_str());
  }
}

absl::StatusOr<FleetOptions> MakeFleetOptions(const DevOptions& options) {
  FleetOptions fleet{.data_dir = options.data_dir,
                     .rollouts = options.rollouts,
                     .rewards = options.rewards,
                     .trainers = options.trainers,
                     .http = options.http,
                     .fixed_ports = !options.free_ports,
                     .insecure = options.insecure,
                     .judges = options.judges,
                     .plugin_servers = options.plugin_servers};
  if (!options.threads.empty()) {
    SLUICE_ASSIGN_OR_RETURN(fleet.threads, ParseThreads(options.threads));
  }
  return fleet;
}

// Reads from a pipe until the first newline or its end.
std::string ReadFirstLine(int fd) {
  std::string line;
  char c;
  while (read(fd, &c, 1) == 1 && c != '\n') line += c;
  return line;
}

}  // namespace

ExitCode DevUp(const DevOptions& options) {
  // The same fleet runs already: show it.
  if (const auto running = FindRunningFleet(options.data_dir); running.ok()) {
    std::fprintf(
        stderr,
        "a fleet already runs on %s, with the options of its start; `sluice dev down` ends it\n",
        options.data_dir.c_str());
    PrintFleet(*running, options.output);
    PrintPage(*running);
    return kDone;
  }

  // With fixed ports, only one fleet can run on a machine.
  if (const std::string other = FindFleetDir("");
      !options.free_ports && FindRunningFleet(other).ok()) {
    return Complain(ErrorWith(
        absl::StatusCode::kFailedPrecondition,
        {.hint = absl::StrCat("`sluice dev down --data-dir ", other,
                              "` ends it; --free-ports takes other ports")},
        absl::StrCat("a fleet runs on ", other, ", and this one would need the same ports")));
  }

  const std::string log = options.data_dir + "/logs/supervisor.log";
  if (const absl::Status status = MakeDirs(options.data_dir + "/logs"); !status.ok())
    return Complain(status);

  const absl::Time start = absl::Now();
  ChildOptions child;
  child.argv = {absl::StrCat(ProgramDir(), "/sluice"),
                "dev",
                "supervise",
                "--data-dir",
                options.data_dir,
                "--rollouts",
                absl::StrCat(options.rollouts),
                "--rewards",
                absl::StrCat(options.rewards),
                "--trainers",
                absl::StrCat(options.trainers)};
  if (!options.threads.empty()) child.argv.insert(child.argv.end(), {"--threads", options.threads});
  if (options.http) child.argv.push_back("--http");
  if (options.free_ports) child.argv.push_back("--free-ports");
  if (options.insecure) child.argv.push_back("--insecure-loopback");
  if (!options.judges.empty()) child.argv.insert(child.argv.end(), {"--judges", options.judges});
  if (!options.plugin_servers.empty())
    child.argv.insert(child.argv.end(), {"--plugin-servers", options.plugin_servers});
  child.stderr_path = log;
  child.dies_with_parent = false;
  child.own_session = true;
  const absl::StatusOr<Child> supervisor = StartChild(child);
  if (!supervisor.ok()) return Complain(supervisor.status());

  // The supervisor writes this line when the fleet is ready or has failed.
  const std::string line = ReadFirstLine(supervisor->stdout_fd);
  close(supervisor->stdout_fd);
  const nlohmann::json report = nlohmann::json::parse(line, nullptr, false);
  if (!report.is_object() || report.contains("error")) {
    int status = 0;
    waitpid(supervisor->pid, &status, 0);
    return Complain(ErrorWith(
        absl::StatusCode::kInternal,
        {.hint = absl::StrCat("logs are in ", options.data_dir, "/logs")},
        report.is_object() ? report.value("error", "")
                           : absl::StrCat("the supervisor ended with ", WaitStatusText(status))));
  }

  const auto fleet = ReadFleetState(options.data_dir);
  if (!fleet.ok()) return Complain(fleet.status());
  PrintFleet(*fleet, options.output);
  if (const auto planned = MakeFleetOptions(options); planned.ok())
    std::fprintf(stderr, "%s\n", PlanText(PlanCores(*planned)).c_str());
  std::fprintf(stderr, "loopback only, %s   data and logs in %s   ready in %.1f s\n",
               options.insecure ? "no TLS" : "mTLS with an authority of its own",
               options.data_dir.c_str(), absl::ToDoubleSeconds(absl::Now() - start));
  PrintPage(*fleet);
  return kDone;
}

ExitCode DevSupervise(const DevOptions& options) {
  Mutex mu;
  CondVar changed;
  bool stop = false;
  std::string controller;
  Supervisor* running = nullptr;

  // Two threads write the state file: this one and the supervisor's. `writing` is held from reading
  // the state to writing it, so that the newest state is written last.
  Mutex writing;
  const auto write_state = [&] {
    MutexLock one_at_a_time(&writing);
    FleetState state{getpid(), ProcessStart(getpid()), "", {}};
    Supervisor* supervisor;
    {
      MutexLock lock(&mu);
      supervisor = running;
      state.controller = controller;
    }
    if (supervisor != nullptr) state.daemons = supervisor->states();
    (void)WriteFleetState(options.data_dir, state);
  };
  const auto fail = [](const absl::Status& status) {
    // The message may contain a path that is not UTF-8, for which dump() throws by default.
    const nlohmann::json line = {{"error", std::string(status.message())}};
    std::printf("%s\n",
                line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    std::fflush(stdout);
    return ExitCodeOf(status);
  };

  // The lock keeps a second supervisor away from the directory.
  const absl::StatusOr<DirLock> lock_held = DirLock::Acquire(options.data_dir);
  if (!lock_held.ok()) return fail(lock_held.status());

  std::unique_ptr<Supervisor> supervisor;
  Interrupts interrupts([&](int) {
    MutexLock lock(&mu);
    stop = true;
    changed.NotifyAll();
  });
  supervisor = std::make_unique<Supervisor>(
      Supervisor::Options{.log_dir = options.data_dir + "/logs",
                          .changed = [&](const DaemonState&) { write_state(); }});
  {
    MutexLock lock(&mu);
    running = supervisor.get();
  }

  const absl::StatusOr<FleetOptions> fleet = MakeFleetOptions(options);
  if (!fleet.ok()) return fail(fleet.status());
  const absl::StatusOr<std::string> address = StartFleet(*fleet, supervisor.get());
  if (!address.ok()) {
    supervisor->Stop(kGrace);
    supervisor.reset();  // No call of `changed` comes after this.
    RemoveFleetState(options.data_dir);
    return fail(address.status());
  }

  {
    MutexLock lock(&mu);
    controller = *address;
  }
  write_state();
  RememberFleet(options.data_dir);
  std::printf("{\"controller\": \"%s\"}\n", address->c_str());
  std::fflush(stdout);
  {
    MutexLock lock(&mu);
    while (!stop) changed.Wait(&mu);
  }

  supervisor->Stop(kGrace);
  supervisor.reset();  // No call of `changed` comes after this.
  RemoveFleetState(options.data_dir);
  ForgetFleet(options.data_dir);
  return kDone;
}

ExitCode DevDown(const DevOptions& options) {
  const absl::StatusOr<FleetState> state = FindRunningFleet(options.data_dir);
  if (!state.ok()) {
    // A state file may be left from a fleet that was killed; its daemons died with its supervisor.
    RemoveFleetState(options.data_dir);
    ForgetFleet(options.data_dir);
    std::fprintf(stderr, "%s\n", std::string(state.status().message()).c_str());
    return kDone;
  }
  // The supervisor kills daemons that still run after kGrace, so it ends well within twice that.
  absl::Status status = SignalProcess(state->supervisor, state->supervisor_start, SIGTERM);
  if (status.ok()) status = AwaitEnd(state->supervisor, state->supervisor_start, 2 * kGrace);
  if (!status.ok()) return Complain(status);
  std::fprintf(stderr, "down; data and logs stay in %s\n", options.data_dir.c_str());
  return kDone;
}

ExitCode DevStatus(const DevOptions& options) {
  const absl::StatusOr<FleetState> state = FindRunningFleet(options.data_dir);
  if (!state.ok()) return Complain(state.status());
  PrintFleet(*state, options.output);
  return kDone;
}

ExitCode DevKill(const DevOptions& options, const std::string& role, const std::string& signal) {
  static const std::map<std::string, int> kSignals = {
      {"KILL", SIGKILL}, {"TERM", SIGTERM}, {"INT", SIGINT},  {"STOP", SIGSTOP},
      {"CONT", SIGCONT}, {"ABRT", SIGABRT}, {"SEGV", SIGSEGV}};
  const std::string name(absl::StripPrefix(absl::AsciiStrToUpper(signal), "SIG"));
  const auto known = kSignals.find(name);
  if (known == kSignals.end())
    return Complain(absl::InvalidArgumentError(
        absl::StrCat("no signal ", signal, "; there are KILL, TERM, INT, STOP, CONT, ABRT, SEGV")));
  const absl::StatusOr<FleetState> state = FindRunningFleet(options.data_dir);
  if (!state.ok()) return Complain(state.status());
  for (const DaemonState& daemon : state->daemons) {
    if (daemon.name != role && daemon.role != role) continue;
    if (daemon.pid <= 0) {
      const std::string why = daemon.last_end.empty() ? "" : absl::StrCat(": ", daemon.last_end);
      return Complain(
          ErrorWith(absl::StatusCode::kFailedPrecondition,
                    {.hint = "it is started again; `sluice dev status` shows when it is ready"},
                    absl::StrCat(daemon.name, " is down now", why)));
    }
    if (const absl::Status status = SignalProcess(daemon.pid, daemon.start, known->second);
        !status.ok())
      return Complain(Annotate(status, daemon.name));
    std::printf("%s (pid %d) got SIG%s\n", daemon.name.c_str(), daemon.pid, name.c_str());
    return kDone;
  }
  return Complain(absl::NotFoundError(
      absl::StrCat("no daemon or role ", role, "; `sluice dev status` lists them")));
}

}  // namespace sluice::cli
