#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/rpc/cancel.h"
#include "common/rpc/convert.h"
#include "tests/fault/trained.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

// Kills a daemon of a job again and again, and compares what the job has trained with what an
// undisturbed one has.
namespace sluice::fault {
namespace {

using integration::Cluster;
using integration::kLong;

constexpr int kStepsPerKill = 40;
constexpr absl::Duration kLongestJob = absl::Hours(1);

struct Options {
  std::string role = "trainer";
  int kills = 50;
  int ranks = 1;  // Of the trainer.
  uint64_t seed = 1;
};

class DaemonKills {
 public:
  explicit DaemonKills(const Options& options)
      : options_(options), steps_((options.kills + 1) * kStepsPerKill), random_(options.seed) {}

  // INTERNAL: the killed job has trained something else than the undisturbed one.
  absl::Status Run() {
    const absl::Time began = absl::Now();
    SLUICE_ASSIGN_OR_RETURN(const Trained undisturbed, Train(0));
    const absl::Time between = absl::Now();
    SLUICE_ASSIGN_OR_RETURN(const Trained killed, Train(options_.kills));
    std::printf(
        "%d steps of %d rank(s): %.1f s undisturbed, %.1f s with %d kills of the %s, %d of them "
        "while it came back\n",
        steps_, options_.ranks, absl::ToDoubleSeconds(between - began),
        absl::ToDoubleSeconds(absl::Now() - between), options_.kills, options_.role.c_str(),
        early_);
    PrintReturns();
    const std::vector<std::string> differences = Differences(undisturbed, killed);
    for (const std::string& difference : differences)
      std::printf("DIFFERS: %s\n", difference.c_str());
    if (!differences.empty()) return absl::InternalError("the kills have changed what was trained");
    std::printf(
        "ok: weights, moments, %zu trajectories and the metrics of %zu steps are equal bit "
        "for bit\n",
        killed.batches.size(), killed.metrics.size());
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<Trained> Train(int kills) {
    Cluster cluster({.trainers = options_.ranks});
    absl::StatusOr<Trained> trained = TrainOn(cluster, kills);
    if (!trained.ok()) cluster.KeepFolder();
    return trained;
  }

  absl::StatusOr<Trained> TrainOn(Cluster& cluster, int kills) {
    SLUICE_RETURN_IF_ERROR(cluster.Start());
    SLUICE_ASSIGN_OR_RETURN(
        const std::unique_ptr<integration::Job> job,
        integration::SubmitDigits(
            &cluster, steps_,
            {"queue.max_staleness=0", "queue.keep.durability=full", "checkpoint.every_steps=4",
             absl::StrCat("resources.trainer=", options_.ranks), "trainer.shard=optimizer",
             "limits.restarts_per_hour=1000", "limits.wall=4h"}));
    for (int kill = 1; kill <= kills; ++kill) SLUICE_RETURN_IF_ERROR(Kill(cluster, *job, kill));
    SLUICE_ASSIGN_OR_RETURN(const job::v1::JobStatus end, job->AwaitEnd(kLongestJob));
    for (const absl::Time started : started_) AddReturn(started, job->reports());
    started_.clear();
    return ReadTrained(end);
  }

  // Adds the time from the start of a killed daemon to the end of the second step after it. The
  // first one may need nothing more of the daemon.
  void AddReturn(absl::Time started, const std::vector<job::v1::StepReport>& reports) {
    int ended = 0;
    for (const job::v1::StepReport& report : reports) {
      const absl::Time at = rpc::FromProto(report.at());
      if (at > started && ++ended == 2) return returns_.push_back(at - started);
    }
  }
  void PrintReturns() {
    if (returns_.empty()) return;
    std::sort(returns_.begin(), returns_.end());
    std::printf("two steps after its start: %.2f s (median of %zu), %.2f s at most\n",
                absl::ToDoubleSeconds(returns_[returns_.size() / 2]), returns_.size(),
                absl::ToDoubleSeconds(returns_.back()));
  }

  // Kills the daemon, or one rank of the trainer, at a random moment, and starts it again as its
  // supervisor would. Every third kill does not wait for new steps, so it comes while the daemon
  // starts or the trainer restores.
  absl::Status Kill(Cluster& cluster, integration::Job& job, int kill) {
    const int64_t steps = job.steps();
    if (kill % 3 != 0) {
      SLUICE_RETURN_IF_ERROR(job.AwaitStep(steps + Below(6), kLong));
      pause_.WaitFor(absl::Milliseconds(Below(100)));
    } else {
      pause_.WaitFor(absl::Milliseconds(Below(1000)));
      if (job.steps() == steps) ++early_;
    }
    if (job.steps() >= steps_) return absl::OutOfRangeError("the job ended before the last kill");
    const std::string killed =
        absl::StrCat(options_.role, "-", options_.role == "trainer" ? Below(options_.ranks) : 0);
    SLUICE_RETURN_IF_ERROR(cluster.Kill(killed));
    started_.push_back(absl::Now());
    return cluster.Start(killed);
  }

  int Below(int limit) { return static_cast<int>(random_.Next() % static_cast<uint64_t>(limit)); }

  const Options options_;
  const int steps_;
  SplitMix64 random_;
  rpc::Cancel pause_;                    // Never triggered.
  int early_ = 0;                        // Kills before which there was no new step.
  std::vector<absl::Time> started_;      // When killed daemons were started again.
  std::vector<absl::Duration> returns_;  // See AddReturn().
};

}  // namespace
}  // namespace sluice::fault

int main(int argc, char** argv) {
  using namespace sluice::fault;
  CLI::App app{
      "Trains the example job twice on real daemons: undisturbed, and with kills (SIGKILL) of one "
      "of\n"
      "them at random moments. Fails if weights, moments, batches or metrics differ in a bit.",
      "daemon_kills"};
  app.footer(
      "Exit code 0: nothing differs, 1: something does, or a job failed.\n"
      "Examples:\n  daemon_kills --kills 50 --ranks 2\n  daemon_kills --role reward --kills 100");
  Options options;
  app.add_option("--role", options.role, "the daemon that is killed")
      ->capture_default_str()
      ->check(CLI::IsMember({"trainer", "rollout", "reward", "queue"}));
  app.add_option("--kills", options.kills, "how often it, or a rank of it, is killed")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--ranks", options.ranks, "ranks of the trainer")
      ->capture_default_str()
      ->check(CLI::Range(1, 4));
  app.add_option("--seed", options.seed, "seed of the moments of the kills")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  signal(SIGPIPE, SIG_IGN);
  const absl::Status status = DaemonKills(options).Run();
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
