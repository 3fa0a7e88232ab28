#include "tests/bench/private_run.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "common/rpc/channel.h"
#include "tools/sluice/client.h"
#include "tools/sluice/fleet.h"
#include "tools/sluice/fleet_tls.h"
#include "tools/sluice/supervisor.h"

namespace sluice::bench {
namespace {

// Returns the body of http://address/metrics, or an empty text if it cannot be read.
std::string GetMetrics(const std::string& address) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(address, absl::MaxSplits(':', 1));
  int port = 0;
  if (!absl::SimpleAtoi(parts.second, &port)) return "";
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, parts.first.c_str(), &to.sin_addr);
  std::string answer;
  const std::string request =
      absl::StrCat("GET /metrics HTTP/1.1\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0 &&
      write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
    char buffer[65536];
    for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;)
      answer.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  const size_t body = answer.find("\r\n\r\n");

  return body == std::string::npos ? "" : answer.substr(body + 4);
}

// Returns the user and system time of a process so far in seconds, from /proc.
double CpuSeconds(pid_t pid) {
  const auto stat = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  if (!stat.ok() || stat->rfind(')') == std::string::npos) return 0;
  const std::vector<std::string> fields = absl::StrSplit(stat->substr(stat->rfind(')') + 2), ' ');
  double user = 0, system = 0;
  if (fields.size() < 13 || !absl::SimpleAtod(fields[11], &user) ||
      !absl::SimpleAtod(fields[12], &system))
    return 0;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

std::vector<pid_t> PidsOf(const cli::Supervisor& supervisor, const std::string& role) {
  std::vector<pid_t> pids;
  for (const cli::DaemonState& daemon : supervisor.states()) {
    if (daemon.role == role) pids.push_back(daemon.pid);
  }
  return pids;
}

std::vector<DaemonUse> ReadUse(const cli::Supervisor& supervisor) {
  std::vector<DaemonUse> uses;
  for (const cli::DaemonState& daemon : supervisor.states()) {
    uses.push_back({.name = daemon.name,
                    .role = daemon.role,
                    .at = absl::Now(),
                    .cpu_seconds = CpuSeconds(daemon.pid),
                    .metrics = GetMetrics(daemon.ops)});
  }
  return uses;
}

}  // namespace

absl::StatusOr<RunOutcome> RunPrivately(const std::string& file, std::vector<std::string> sets,
                                        const RunOptions& options) {
  std::string dir = (std::filesystem::temp_directory_path() / "sluice-bench-XXXXXX").string();
  if (mkdtemp(dir.data()) == nullptr) return ErrnoStatus(errno, dir);
  struct Remove {
    const std::string& dir;
    ~Remove() { (void)RemoveTree(dir); }
  } remove{dir};

  SLUICE_RETURN_IF_ERROR(MakeDirs(dir + "/logs"));
  sets.insert(sets.begin(), absl::StrCat("checkpoint.dir=", dir, "/checkpoints"));
  const JobFile job = ReadJobFile(file, {.sets = sets});
  SLUICE_RETURN_IF_ERROR(ProblemStatus(job.problems));

  cli::FleetOptions fleet{.data_dir = dir, .rollouts = options.rollouts};
  if (!options.threads.empty()) {
    SLUICE_ASSIGN_OR_RETURN(fleet.threads, cli::ParseThreads(options.threads));
  }
  cli::Supervisor supervisor({.log_dir = dir + "/logs"});
  SLUICE_ASSIGN_OR_RETURN(const std::string controller, cli::StartFleet(fleet, &supervisor));
  SLUICE_RETURN_IF_ERROR(cli::BecomeOperator(dir));
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<rpc::Channel> channel,
                          rpc::Connect(controller, {rpc::Role::kController}));
  SLUICE_ASSIGN_OR_RETURN(const job::v1::SubmitResponse submitted, cli::Submit(*channel, job));
  const LiveRun live{.controller = *channel, .job = submitted.job(), .read_use = [&] {
                       return ReadUse(supervisor);
                     }};

  RunOutcome outcome;
  cli::JobHandlers handlers;
  std::atomic<bool> stepping = false;
  handlers.step = [&](const job::v1::StepReport& step) {
    stepping = true;
    outcome.steps.push_back(step);
    if (options.on_step) options.on_step(live, step);
  };

  // The overlap is measured from the first step on, because start-up is no part of it.
  OverlapSampler overlap({"sluice-decode", PidsOf(supervisor, "rollout")},
                         {"sluice-train", PidsOf(supervisor, "trainer")},
                         [&] { return stepping.load(); });
  SLUICE_ASSIGN_OR_RETURN(outcome.status, cli::FollowJob(*channel, submitted.job(), nullptr,
                                                         absl::Minutes(1), handlers));
  outcome.overlap = overlap.Stop();

  outcome.daemons = ReadUse(supervisor);
  supervisor.Stop(absl::Seconds(10));
  if (outcome.status.state() != job::v1::JOB_STATE_SUCCEEDED) {
    return absl::UnknownError(absl::StrCat("the job ended ", cli::StateName(outcome.status.state()),
                                           ": ", outcome.status.message()));
  }
  return outcome;
}

double SumMetric(const std::string& metrics, const std::string& name, const std::string& label) {
  double sum = 0;
  for (const absl::string_view line : absl::StrSplit(metrics, '\n')) {
    if (!absl::StartsWith(line, name)) continue;
    const absl::string_view rest = line.substr(name.size());
    if (rest.empty() || (rest[0] != '{' && rest[0] != ' ')) continue;
    if (!label.empty() && !absl::StrContains(rest, label)) continue;
    double value = 0;
    if (absl::SimpleAtod(rest.substr(rest.rfind(' ') + 1), &value)) sum += value;
  }

  return sum;
}

}  // namespace sluice::bench
