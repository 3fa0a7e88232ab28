#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "common/rpc/channel.h"
#include "common/rpc/client.h"
#include "sluice/job/v1/job.pb.h"
#include "tests/integration/harness/job.h"
#include "tools/sluice/fleet.h"
#include "tools/sluice/fleet_tls.h"
#include "tools/sluice/supervisor.h"

// Trains the example again and again on one fleet, under the supervisor of `sluice run` and `sluice
// dev up`. Every so often a random daemon is killed with SIGKILL, and the supervisor starts it
// again. Memory is watched all the time.
namespace sluice::fault {
namespace {

struct Options {
  std::string file = SLUICE_SOURCE_DIR "/configs/examples/digits.yaml";
  std::vector<std::string> sets;
  double minutes = 30;
  double every = 20;    // Seconds between kills; 0: there are none.
  double reward = 0.8;  // The least reward that each job must end with.
  uint64_t seed = 1;
  std::string dir;
  bool as_json = false, keep = false;
};

constexpr absl::Duration kSample = absl::Seconds(1);
constexpr absl::Duration kWarmUp = absl::Seconds(5);  // A younger process is still loading.
constexpr absl::Duration kJobLimit = absl::Minutes(20);
// The memory of a daemon is flat if the mean of the last third of its samples exceeds that of the
// first third by at most this share of it plus these MiB.
constexpr double kMaxGrowth = 0.10, kMaxGrowthMib = 16;
// With fewer samples of a daemon, its growth is not judged. With sanitizers it never is, because
// they keep what is freed, and their own records grow.
#ifdef SLUICE_SANITIZED
constexpr size_t kMinSamples = std::numeric_limits<size_t>::max();
#else
constexpr size_t kMinSamples = 60;
#endif

// The resident memory of a daemon, through all its processes.
class Memory {
 public:
  void Add(absl::Duration at, double mib) { samples_.emplace_back(absl::ToDoubleMinutes(at), mib); }
  // Growth in MiB per minute, by least squares.
  double Slope() const {
    double n = 0, t = 0, m = 0, tt = 0, tm = 0;
    for (const auto& [at, mib] : samples_) n += 1, t += at, m += mib, tt += at * at, tm += at * mib;
    const double spread = n * tt - t * t;
    return spread <= 0 ? 0 : (n * tm - t * m) / spread;
  }

  // The mean of one third of the samples: the first (0), second (1) or last (2).
  double ThirdMean(int i) const {
    const size_t from = samples_.size() * static_cast<size_t>(i) / 3,
                 to = samples_.size() * static_cast<size_t>(i + 1) / 3;
    double sum = 0;
    for (size_t s = from; s < to; ++s) sum += samples_[s].second;
    return to == from ? 0 : sum / static_cast<double>(to - from);
  }

  size_t samples() const { return samples_.size(); }
  bool HasEnoughSamples() const { return samples_.size() >= kMinSamples; }
  bool IsFlat() const {
    return !HasEnoughSamples() || ThirdMean(2) <= ThirdMean(0) * (1 + kMaxGrowth) + kMaxGrowthMib;
  }

 private:
  std::vector<std::pair<double, double>> samples_;  // Minute, MiB.
};

// The resident memory of a process in MiB; 0 if it is gone.
double ResidentMib(pid_t pid) {
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat("/proc/", pid, "/statm"));
  const std::vector<std::string> words = absl::StrSplit(text.value_or(""), ' ');
  int64_t pages = 0;
  return words.size() > 1 && absl::SimpleAtoi(words[1], &pages)
             ? static_cast<double>(pages) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20)
             : 0;
}

bool IsFinal(job::v1::JobState state) {
  return state == job::v1::JOB_STATE_SUCCEEDED || state == job::v1::JOB_STATE_CANCELLED ||
         state == job::v1::JOB_STATE_FAILED;
}

class Soak {
 public:
  explicit Soak(const Options& options)
      : options_(options), random_(options.seed), supervisor_({.log_dir = options.dir + "/logs"}) {}

  // OK: the run came to its end, and wrong() says what it found.
  absl::Status Run() {
    SLUICE_RETURN_IF_ERROR(MakeDirs(options_.dir + "/logs"));
    SLUICE_ASSIGN_OR_RETURN(const std::string controller,
                            cli::StartFleet({.data_dir = options_.dir}, &supervisor_));
    SLUICE_RETURN_IF_ERROR(cli::BecomeOperator(options_.dir));
    SLUICE_ASSIGN_OR_RETURN(controller_, rpc::Connect(controller, {rpc::Role::kController}));

    const absl::Time end = start_ + absl::Seconds(60 * options_.minutes);
    next_kill_ = start_ + absl::Seconds(options_.every);
    while (absl::Now() < end) {
      SLUICE_ASSIGN_OR_RETURN(const std::string job, Submit());
      SLUICE_RETURN_IF_ERROR(Follow(job));
    }

    supervisor_.Stop(absl::Seconds(20));
    for (const auto& [daemon, memory] : memory_) {
      if (!memory.IsFlat())
        wrong_.push_back(absl::StrFormat("memory of %s grew from %.0f to %.0f MiB", daemon,
                                         memory.ThirdMean(0), memory.ThirdMean(2)));
    }
    return absl::OkStatus();
  }

  const std::vector<std::string>& wrong() const { return wrong_; }

  void Report() const {
    nlohmann::json out = {{"seconds", absl::ToDoubleSeconds(absl::Now() - start_)},
                          {"jobs", jobs_},
                          {"wrong", wrong_},
                          {"ok", wrong_.empty()}};
    for (const auto& [daemon, memory] : memory_) {
      nlohmann::json& of =
          out["daemons"][daemon] = {{"kills", kills_.contains(daemon) ? kills_.at(daemon) : 0},
                                    {"rss_samples", memory.samples()}};
      if (!memory.HasEnoughSamples()) continue;
      of.update({{"rss_first_third_mib", memory.ThirdMean(0)},
                 {"rss_last_third_mib", memory.ThirdMean(2)},
                 {"rss_slope_mib_per_minute", memory.Slope()}});
    }

    if (options_.as_json) {
      std::printf("%s\n", out.dump().c_str());
      return;
    }
    std::printf("%-14s %5s %16s %16s %18s\n", "daemon", "kills", "RSS first third",
                "RSS last third", "slope");
    for (const auto& [daemon, memory] : memory_) {
      std::printf("%-14s %5d ", daemon.c_str(), kills_.contains(daemon) ? kills_.at(daemon) : 0);
      if (!memory.HasEnoughSamples()) {
        std::printf("  memory is not judged: there are %zu samples, wanted at least %zu\n",
                    memory.samples(), kMinSamples);
        continue;
      }
      std::printf("%12.1f MiB %12.1f MiB %+10.2f MiB/min\n", memory.ThirdMean(0),
                  memory.ThirdMean(2), memory.Slope());
    }
    for (const std::string& what : wrong_) std::printf("WRONG: %s\n", what.c_str());
    int kills = 0;
    for (const auto& [daemon, count] : kills_) kills += count;
    std::printf("%s: %zu jobs and %d kills in %.0f s\n", wrong_.empty() ? "ok" : "FAILED",
                jobs_.size(), kills, absl::ToDoubleSeconds(absl::Now() - start_));
  }

 private:
  absl::StatusOr<std::string> Submit() {
    const size_t n = jobs_.size();
    std::vector<std::string> sets = {
        absl::StrCat("name=soak-", n),
        absl::StrCat("run.seed=", 1 + n % 5),
        absl::StrCat("checkpoint.dir=", options_.dir, "/checkpoints-", n),
        "limits.wall=1h",
        "limits.restarts_per_hour=100000",
        "queue.keep.durability=full"};
    sets.insert(sets.end(), options_.sets.begin(), options_.sets.end());
    const JobFile loaded = ReadJobFile(options_.file, {.sets = sets});
    SLUICE_RETURN_IF_ERROR(ProblemStatus(loaded.problems));

    job::v1::SubmitRequest request;
    request.set_name(loaded.spec->name());
    request.set_hash(loaded.hash);
    *request.mutable_spec() = *loaded.spec;
    request.mutable_origins()->insert(loaded.origins.begin(), loaded.origins.end());
    job::v1::SubmitResponse response;

    // The controller may have been killed a moment ago.
    SLUICE_RETURN_IF_ERROR(
        rpc::Call(*controller_, request, &response, {.give_up = absl::Minutes(1)}));
    return response.job();
  }

  absl::Status Follow(const std::string& job) {
    const absl::Time begun = absl::Now();
    job::v1::GetRequest request;
    request.set_job(job);
    while (true) {
      absl::SleepFor(kSample);
      Sample();
      if (options_.every > 0 && absl::Now() >= next_kill_) KillOne();
      job::v1::JobStatus status;
      const absl::Status got =
          rpc::Call(*controller_, request, &status, {.give_up = absl::Seconds(30)});
      if (!got.ok() && !absl::IsUnavailable(got) && !absl::IsDeadlineExceeded(got)) return got;
      if (got.ok() && IsFinal(status.state())) {
        Judge(status, absl::Now() - begun);
        return absl::OkStatus();
      }
      if (absl::Now() - begun > kJobLimit)
        return absl::DeadlineExceededError(
            absl::StrCat("job ", job, " has not ended: ", integration::Text(status)));
    }
  }

  void Sample() {
    const absl::Time now = absl::Now();
    for (const cli::DaemonState& daemon : supervisor_.states()) {
      if (!daemon.ready) continue;
      auto& [pid, since] = running_since_[daemon.name];
      if (pid != daemon.pid) pid = daemon.pid, since = now;
      const double mib = ResidentMib(daemon.pid);
      if (now - since >= kWarmUp && mib > 0) memory_[daemon.name].Add(now - start_, mib);
    }
  }

  void KillOne() {
    next_kill_ += absl::Seconds(options_.every);
    const std::vector<cli::DaemonState> daemons = supervisor_.states();
    const std::string name = daemons[random_.Below(daemons.size())].name;
    if (!supervisor_.Signal(name, SIGKILL).ok()) return;  // It is down already.
    ++kills_[name];
    if (!options_.as_json)
      std::fprintf(stderr, "%5.0f s  kill -9 of %s\n", absl::ToDoubleSeconds(absl::Now() - start_),
                   name.c_str());
  }

  void Judge(const job::v1::JobStatus& status, absl::Duration took) {
    const job::v1::JobResult& result = status.result();
    const absl::Status balanced = integration::CheckLedgerBalances(status);
    if (status.state() != job::v1::JOB_STATE_SUCCEEDED)
      wrong_.push_back("a job did not succeed: " + integration::Text(status));
    if (!balanced.ok()) wrong_.push_back(absl::StrCat(status.name(), ": ", balanced.message()));
    if (result.reward_last() < options_.reward)
      wrong_.push_back(absl::StrFormat("%s: reward %.3f, wanted %.2f", status.name(),
                                       result.reward_last(), options_.reward));
    jobs_.push_back({{"name", status.name()},
                     {"state", job::v1::JobState_Name(status.state())},
                     {"seconds", absl::ToDoubleSeconds(took)},
                     {"steps", result.steps()},
                     {"reward_last", result.reward_last()},
                     {"balanced", balanced.ok()}});

    const std::string line = jobs_.back().dump();
    std::fprintf(options_.as_json ? stdout : stderr, "%s\n", line.c_str());
    std::fflush(stdout);
  }

  const Options& options_;
  const absl::Time start_ = absl::Now();
  absl::Time next_kill_;
  SplitMix64 random_;
  cli::Supervisor supervisor_;
  std::shared_ptr<rpc::Channel> controller_;
  // By daemon: its process id, and since when that is running.
  std::map<std::string, std::pair<pid_t, absl::Time>> running_since_;
  std::map<std::string, Memory> memory_;
  std::map<std::string, int> kills_;
  std::vector<nlohmann::json> jobs_;
  std::vector<std::string> wrong_;
};

}  // namespace
}  // namespace sluice::fault

int main(int argc, char** argv) {
  using namespace sluice::fault;
  CLI::App app{
      "Trains the example again and again while random daemons are killed with SIGKILL; each job "
      "must succeed, reach its reward and\n"
      "have a balanced ledger, and no daemon's memory may grow (judged from a minute of samples "
      "on).",
      "soak"};
  app.footer(
      "Exit code 0: nothing wrong was found, 1: something was, 2: misused. The last job is run "
      "to its end.");
  Options options;
  app.add_option("--file", options.file, "the job file")->capture_default_str();
  app.add_option("--set", options.sets, "KEY=VALUE that replaces the job file's; may be repeated");
  app.add_option("--minutes", options.minutes, "minutes after which no further job is submitted")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--every", options.every,
                 "seconds between two kills; 0: nothing is killed, and only memory is watched")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--reward", options.reward, "least mean reward with which each job must end")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "seed of the choice of daemons to kill")
      ->capture_default_str();
  app.add_option("--dir", options.dir,
                 "directory of the run's files; default: a new one in the temporary directory");
  app.add_flag("--keep", options.keep, "keep the files even if nothing wrong was found");
  app.add_flag("--json", options.as_json,
               "print one JSON object per line: one for each job, then the report");
  CLI11_PARSE(app, argc, argv);
  signal(SIGPIPE, SIG_IGN);
  if (options.dir.empty())
    options.dir =
        absl::StrCat(std::filesystem::temp_directory_path().string(), "/sluice-soak-", getpid());
  bool ok = false;
  {
    Soak soak(options);
    const absl::Status status = soak.Run();
    if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.ToString().c_str());
    soak.Report();
    ok = status.ok() && soak.wrong().empty();
  }
  if (ok && !options.keep) (void)sluice::RemoveTree(options.dir);
  if (!ok) std::fprintf(stderr, "data, checkpoints and logs: %s\n", options.dir.c_str());
  return ok ? 0 : 1;
}
