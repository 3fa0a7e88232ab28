#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/rpc/cancel.h"
#include "common/rpc/client.h"
#include "sluice/job/v1/job.pb.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"
#include "tests/integration/harness/redis_history.h"
#include "tests/integration/harness/redis_server.h"

// Kills the leading one of two controllers again and again while a job trains, and does what else
// can go wrong with a leader and its Redis.
namespace sluice::fault {
namespace {

using integration::Cluster;
using integration::kLong;
using integration::RedisServer;

enum class Fault { kKill, kKillBoth, kPause, kRedisKill, kRedisPause, kFlush, kOutage };

const char* NameOf(Fault fault) {
  switch (fault) {
    case Fault::kKill: return "leader killed";
    case Fault::kKillBoth: return "both controllers killed";
    case Fault::kPause: return "leader paused";
    case Fault::kRedisKill: return "Redis killed";
    case Fault::kRedisPause: return "Redis paused";
    case Fault::kFlush: return "Redis flushed";
    case Fault::kOutage: return "all of them away";
  }
  return "";
}

constexpr const char* kControllers[] = {"controller-0", "controller-1"};
constexpr int64_t kStepsBetween = 5;  // Between a fault and the next one.
constexpr absl::Duration kRedisPause = absl::Seconds(5);

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

struct Options {
  int kills = 50;
  absl::Duration outage;  // Zero: none.
  uint64_t seed = 1;
  bool as_json = false;
};

class ControllerKills {
 public:
  explicit ControllerKills(const Options& options) : options_(options), random_(options.seed) {}

  absl::Status Run() {
    // The history of writes is read from Redis's append-only file, so the file is never rewritten.
    redis_ = RedisServer::Start({.durable = true, .args = {"--auto-aof-rewrite-percentage", "0"}});
    if (redis_ == nullptr) return absl::InternalError("redis-server did not start");
    cluster_ = std::make_unique<Cluster>(integration::ClusterOptions{
        .controllers = 2, .store = absl::StrCat("redis://", redis_->endpoint().str())});
    SLUICE_RETURN_IF_ERROR(cluster_->Start());
    SLUICE_ASSIGN_OR_RETURN(
        job_, integration::SubmitDigits(cluster_.get(), 1'000'000, {"limits.wall=none"}));
    SLUICE_RETURN_IF_ERROR(job_->AwaitStep(kStepsBetween, kLong));

    for (int kill = 1; kill <= options_.kills; ++kill) {
      SLUICE_RETURN_IF_ERROR(Do(Fault::kKill));
      if (kill % 10 == 2) SLUICE_RETURN_IF_ERROR(Do(Fault::kPause));
      if (kill % 10 == 4) SLUICE_RETURN_IF_ERROR(Do(Fault::kRedisKill));
      if (kill % 10 == 6) SLUICE_RETURN_IF_ERROR(Do(Fault::kRedisPause));
      if (kill % 10 == 8) SLUICE_RETURN_IF_ERROR(Do(Fault::kFlush));
      if (kill % 10 == 0) SLUICE_RETURN_IF_ERROR(Do(Fault::kKillBoth));
    }
    if (options_.outage > absl::ZeroDuration()) SLUICE_RETURN_IF_ERROR(Do(Fault::kOutage));
    return Judge();
  }

  const std::vector<std::string>& wrong() const { return wrong_; }

  // `came_to_end`: the run was not broken off by an error.
  void Report(bool came_to_end) const {
    const std::vector<double> gaps = StepGaps();
    nlohmann::json out = {{"steps", gaps.size() + 1},
                          {"step_median_seconds", Quantile(gaps, 0.5)},
                          {"step_largest_gap_seconds", Quantile(gaps, 1)},
                          {"submitted", submitted_.size()},
                          {"leaders", leaders_},
                          {"writes", writes_},
                          {"wrong", wrong_},
                          {"ok", came_to_end && wrong_.empty()}};
    for (const auto& [fault, seconds] : back_after_) {
      out["faults"][NameOf(fault)] = {{"count", seconds.size()},
                                      {"back_p50_seconds", Quantile(seconds, 0.5)},
                                      {"back_max_seconds", Quantile(seconds, 1)}};
    }
    if (options_.as_json) {
      std::printf("%s\n", out.dump().c_str());
      return;
    }
    std::printf("%-24s %5s %22s\n", "fault", "count", "a leader answers after");
    for (const auto& [fault, seconds] : back_after_) {
      std::printf("%-24s %5zu   p50 %5.1f s  max %5.1f s\n", NameOf(fault), seconds.size(),
                  Quantile(seconds, 0.5), Quantile(seconds, 1));
    }
    std::printf("steps %zu, median %.3f s, largest gap %.3f s\n", gaps.size() + 1,
                Quantile(gaps, 0.5), Quantile(gaps, 1));
    std::printf("jobs submitted %zu, leaders %d, writes to the store %zu\n", submitted_.size(),
                leaders_, writes_);
    for (const std::string& what : wrong_) std::printf("WRONG: %s\n", what.c_str());
    std::printf("%s\n", came_to_end && wrong_.empty()
                            ? "ok: no job was lost, and one controller at a time led"
                            : "FAILED");
  }

 private:
  // One fault, until a leader answers again, a job was submitted and training has gone on.
  absl::Status Do(Fault fault) {
    SLUICE_ASSIGN_OR_RETURN(const std::string leader, cluster_->AwaitLeader(kLong));
    // At any moment between two renewals of the lease.
    pause_.WaitFor(absl::Milliseconds(random_.Next() % 3000));
    const absl::Time at = absl::Now();
    SLUICE_RETURN_IF_ERROR(Inject(fault, leader));
    // A leader that was killed or paused is not the next one.
    const bool leader_ends = fault == Fault::kKill || fault == Fault::kPause;
    SLUICE_RETURN_IF_ERROR(cluster_->AwaitLeader(kLong, leader_ends ? leader : "").status());
    back_after_[fault].push_back(absl::ToDoubleSeconds(absl::Now() - at));
    SLUICE_RETURN_IF_ERROR(Repair(fault, leader));
    SLUICE_RETURN_IF_ERROR(SubmitAnother());
    return job_->AwaitStepsSince(at, kStepsBetween, kLong);
  }

  absl::Status Inject(Fault fault, const std::string& leader) {
    switch (fault) {
      case Fault::kKill: return cluster_->Kill(leader);
      case Fault::kKillBoth:
        for (const char* id : kControllers) SLUICE_RETURN_IF_ERROR(cluster_->Kill(id));
        for (const char* id : kControllers) SLUICE_RETURN_IF_ERROR(cluster_->Start(id));
        return absl::OkStatus();
      case Fault::kPause: cluster_->Signal(leader, SIGSTOP); return absl::OkStatus();
      case Fault::kRedisKill:
        redis_->Kill();
        pause_.WaitFor(kRedisPause);
        return redis_->Restart();
      case Fault::kRedisPause:
        redis_->Signal(SIGSTOP);
        pause_.WaitFor(kRedisPause);
        redis_->Signal(SIGCONT);
        return absl::OkStatus();
      case Fault::kFlush: redis_->Run({"FLUSHALL"}); return absl::OkStatus();
      case Fault::kOutage:
        for (const char* id : kControllers) SLUICE_RETURN_IF_ERROR(cluster_->Kill(id));
        redis_->Kill();
        pause_.WaitFor(options_.outage);
        SLUICE_RETURN_IF_ERROR(redis_->Restart());
        for (const char* id : kControllers) SLUICE_RETURN_IF_ERROR(cluster_->Start(id));
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  // Starts the former leader again, as its supervisor would.
  absl::Status Repair(Fault fault, const std::string& leader) {
    if (fault == Fault::kPause) {
      cluster_->Signal(leader, SIGCONT);
      SLUICE_ASSIGN_OR_RETURN(const int exit, cluster_->process(leader).Await(kLong));
      if (exit != 1) wrong_.push_back(absl::StrCat("a paused leader ended with ", exit));
    }
    if (fault == Fault::kPause || fault == Fault::kKill) return cluster_->Start(leader);
    return absl::OkStatus();
  }

  // A job that waits, because the only trainer is taken. No failover may lose it.
  absl::Status SubmitAnother() {
    const std::string name = absl::StrCat("waits-", submitted_.size());
    SLUICE_ASSIGN_OR_RETURN(
        const integration::Finished done,
        cluster_->Sluice({"job", "submit",
                          absl::StrCat(SLUICE_SOURCE_DIR, "/configs/examples/digits.yaml"), "--set",
                          absl::StrCat("name=", name), "--set",
                          absl::StrCat("checkpoint.dir=", cluster_->dir(), "/", name)}));
    if (done.exit != 0) return absl::InternalError(absl::StrCat("submit: ", done.err));
    submitted_.insert(name);
    return absl::OkStatus();
  }

  // Seconds between the ends of successive steps, by the trainer's clock.
  std::vector<double> StepGaps() const {
    std::vector<double> gaps;
    for (size_t i = 1; i < step_times_.size(); ++i)
      gaps.push_back(step_times_[i] - step_times_[i - 1]);
    return gaps;
  }

  // Reads the times of all steps from the history that the trainer has written beside its
  // checkpoints, which needs no controller.
  absl::Status ReadHistory(const std::string& checkpoint) {
    const std::string file =
        absl::StrCat(checkpoint.substr(0, checkpoint.rfind('/')), "/metrics.jsonl");
    SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
    int64_t k = 0;
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const nlohmann::json step = nlohmann::json::parse(line);
      if (step["step"] != k)
        return absl::DataLossError(absl::StrCat(file, ": step ", k, " is missing or came twice"));
      step_times_.push_back(step["time"]);
      ++k;
    }
    return absl::OkStatus();
  }

  // A daemon keeps this many reports of steps for a controller that is away; older ones are given
  // up, and the history alone has them.
  static constexpr size_t kReportsKept = 10'000;

  absl::Status Judge() {
    job::v1::ListResponse jobs;
    SLUICE_RETURN_IF_ERROR(
        rpc::Call(cluster_->controller(), job::v1::ListRequest(), &jobs, {.give_up = kLong}));
    std::set<std::string> lost = submitted_;
    for (const job::v1::JobStatus& job : jobs.jobs()) lost.erase(job.name());
    for (const std::string& name : lost) wrong_.push_back(absl::StrCat("job ", name, " is lost"));

    SLUICE_ASSIGN_OR_RETURN(const integration::Finished cancelled,
                            cluster_->Sluice({"job", "cancel", job_->id()}));
    if (cancelled.exit != 0) return absl::InternalError(absl::StrCat("cancel: ", cancelled.err));
    SLUICE_ASSIGN_OR_RETURN(const job::v1::JobStatus end, job_->AwaitEnd(kLong));
    SLUICE_RETURN_IF_ERROR(ReadHistory(end.result().checkpoint()));
    int64_t last = -1;
    for (const job::v1::StepReport& report : job_->reports()) {
      const bool jumps = step_times_.size() > kReportsKept && report.k() > last;
      if (report.k() != last + 1 && !jumps)
        wrong_.push_back(
            absl::StrCat("the report of step ", last + 1, " is missing or came twice"));
      last = report.k();
    }
    if (end.incarnation() != 1)
      wrong_.push_back(absl::StrCat("the trainer was started ", end.incarnation(), " times"));
    if (const absl::Status ledger = integration::CheckLedgerBalances(end); !ledger.ok())
      wrong_.push_back(std::string(ledger.message()));

    SLUICE_ASSIGN_OR_RETURN(const std::vector<integration::StoreWrite> history,
                            integration::ReadStoreHistory(redis_->dir()));
    leaders_ = integration::CountLeaders(history);
    writes_ = history.size();
    if (const absl::Status one = integration::CheckOneLeaderAtATime(history); !one.ok())
      wrong_.push_back(std::string(one.message()));
    return absl::OkStatus();
  }

  const Options options_;
  SplitMix64 random_;
  rpc::Cancel pause_;  // Never triggered.
  std::unique_ptr<RedisServer> redis_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<integration::Job> job_;
  std::map<Fault, std::vector<double>> back_after_;
  std::set<std::string> submitted_;
  std::vector<double> step_times_;  // Unix times of the ends of all steps.
  int leaders_ = 0;
  size_t writes_ = 0;
  std::vector<std::string> wrong_;
};

}  // namespace
}  // namespace sluice::fault

int main(int argc, char** argv) {
  using namespace sluice::fault;
  CLI::App app{
      "Kills the leading one of two controllers, which keep their jobs in a Redis, while a job\n"
      "trains; in between it pauses the leader, kills both, and kills, pauses and flushes the\n"
      "Redis. With --outage all three are then away for so long. Fails if a job\n"
      "is lost, the ledger does not balance, a step is missing, the trainer is started again, or\n"
      "two controllers lead at a time.",
      "controller_kills"};
  app.footer("Exit code 0: nothing wrong was found, 1: something was, 2: misused.");
  Options options;
  app.add_option("--kills", options.kills, "how often the leader is killed")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  std::string outage = "0s";
  app.add_option("--outage", outage,
                 "after the kills, how long all controllers and the Redis are away, such as 1h")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "seed of the times of the faults")->capture_default_str();
  app.add_flag("--json", options.as_json, "print the report as one JSON object");
  CLI11_PARSE(app, argc, argv);
  if (!absl::ParseDuration(outage, &options.outage) || options.outage < absl::ZeroDuration()) {
    std::fprintf(stderr, "error: --outage %s is not a duration\nhint: give one such as 90s or 1h\n",
                 outage.c_str());
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  ControllerKills run(options);
  const absl::Status status = run.Run();
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.ToString().c_str());
  run.Report(status.ok());
  return status.ok() && run.wrong().empty() ? 0 : 1;
}
