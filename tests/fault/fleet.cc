#include "tests/fault/fleet.h"

#include <signal.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

namespace sluice::fault {
namespace {
using integration::Cluster;
using integration::Job;

constexpr absl::Duration kPatience = absl::Minutes(2);  // Timeout of what must happen.
// How long to wait for an armed failpoint, which may never be reached.
constexpr absl::Duration kReach = absl::Seconds(4);
// The kills of a job stop when fewer than kSpare of its steps are left.
constexpr int kSteps = 400, kKillsPerJob = 20, kSpare = 20;

using Point = std::pair<std::string, std::string>;

// Kills a daemon with SIGKILL, at a failpoint or at once, and starts it again. Lets the job do up
// to one step first, and at least one step afterwards.
absl::Status KillOnce(Cluster* cluster, Job* job, const Point& point, SplitMix64* random,
                      Tally* tally) {
  const auto& [role, name] = point;
  const std::string id = role + "-0";

  SLUICE_RETURN_IF_ERROR(
      job->AwaitStep(job->steps() + static_cast<int64_t>(random->Below(2)), kPatience));

  if (name.empty()) {
    SLUICE_RETURN_IF_ERROR(cluster->Kill(id));
  } else {
    SLUICE_RETURN_IF_ERROR(cluster->Arm(id, name, "kill", 1 + static_cast<int>(random->Below(2))));
    const absl::Status died = cluster->AwaitKilled(id, kReach);
    // The failpoint was not reached: disarm it, so that it does not kill later.
    if (absl::IsDeadlineExceeded(died)) return cluster->Arm(id, name, "", 1);
    SLUICE_RETURN_IF_ERROR(died);
  }

  const absl::Time death = absl::Now();
  tally->AddKill("real-daemons", role, name);

  SLUICE_RETURN_IF_ERROR(cluster->Start(id));
  SLUICE_RETURN_IF_ERROR(job->AwaitStep(job->steps() + 1, kPatience));
  tally->AddRecovery("real " + role, absl::Now() - death);
  return absl::OkStatus();
}

// Checks how a job of the real daemons ended, and adds its numbers to `verdict`.
absl::Status JudgeJob(const job::v1::JobStatus& status, Verdict* verdict) {
  if (status.state() != job::v1::JOB_STATE_SUCCEEDED)
    return absl::InternalError("the job did not succeed: " + integration::Text(status));
  SLUICE_RETURN_IF_ERROR(integration::CheckLedgerBalances(status));

  const common::v1::Ledger& ledger = status.result().ledger();
  verdict->steps += status.result().steps();
  verdict->trained += ledger.durable() + ledger.applied();

  for (const auto& [reason, count] : ledger.dropped()) {
    verdict->dropped += count;
    if (count == 0 || reason == "stale" || reason == "straggler" || reason == "closed") continue;
    ++verdict->lost;
    verdict->wrong.push_back(
        absl::StrCat("LOST: ", count, " trajectories were dropped as ", reason));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<Point> FleetPoints() {
  std::vector<Point> points;
  for (const char* role : {"queue", "rollout", "reward", "trainer"}) points.emplace_back(role, "");
  for (const char* name : {"queue.put.after", "queue.apply.before", "queue.apply.after",
                           "wal.sync.before", "wal.sync.after"})
    points.emplace_back("queue", name);
  for (const char* name :
       {"put.after_ack", "seal.before", "activate.prepare", "activate.before", "activate.after"})
    points.emplace_back("rollout", absl::StrCat("rollout.", name));
  for (const char* name : {"leased", "scored"})
    points.emplace_back("reward", absl::StrCat("reward.", name));
  for (const char* name : {"step.before_apply", "step.after_apply", "checkpoint.before_rename",
                           "durable.before", "publish.before"}) {
    points.emplace_back("trainer", absl::StrCat("trainer.", name));
  }
  return points;
}

absl::StatusOr<Verdict> RunFleet(const MatrixOptions& options, int kills, Tally* tally) {
  SplitMix64 random(options.seed);
  Verdict verdict;
  std::vector<Point> walk;
  const int end = tally->kills() + kills;
  while (tally->kills() < end) {
    Cluster cluster;
    SLUICE_RETURN_IF_ERROR(cluster.Start());
    SLUICE_ASSIGN_OR_RETURN(
        const std::unique_ptr<Job> job,
        integration::SubmitDigits(
            &cluster, kSteps,
            {"limits.wall=30m", "limits.restarts_per_hour=100000", "queue.keep.durability=full"}));

    const int enough = std::min(end, tally->kills() + kKillsPerJob);

    while (tally->kills() < enough && job->steps() + kSpare < kSteps) {
      if (walk.empty()) {
        walk = FleetPoints();
        for (size_t i = walk.size(); i > 1; --i) std::swap(walk[i - 1], walk[random.Below(i)]);
      }

      const Point point = walk.back();
      walk.pop_back();

      const absl::Status killed = KillOnce(&cluster, job.get(), point, &random, tally);
      if (!killed.ok())
        return Annotate(killed, absl::StrCat("kill of the ", point.first, " at ",
                                             point.second.empty() ? "random" : point.second,
                                             ", step ", job->steps()));
    }

    SLUICE_ASSIGN_OR_RETURN(const job::v1::JobStatus status, job->AwaitEnd(kPatience));
    SLUICE_RETURN_IF_ERROR(JudgeJob(status, &verdict));
  }
  return verdict;
}

}  // namespace sluice::fault
