#include "tests/fault/toy_matrix.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/rpc/client.h"
#include "common/wal/failpoints.h"
#include "sluice/admin/v1/admin.pb.h"
#include "tests/integration/harness/process.h"

namespace sluice::fault {
namespace {
using integration::Process;

constexpr absl::Duration kToyPatience = absl::Seconds(60);  // Timeout of what must happen.
// How long to wait for an armed failpoint, which may never be reached.
constexpr absl::Duration kToyReach = absl::Seconds(3);
// Small sizes of the log's files, so that the queue fills and recycles segments and takes snapshots
// all the time.
constexpr char kSegmentBytes[] = "131072", kSnapshotBytes[] = "65536";

// What makes the queue reach a failpoint: its normal work, its start, a Restore by a new trainer,
// or a call of SetJob.
enum class When { kRuns, kStarts, kRestores, kSetJob };
struct KillPoint {
  std::string role, name;
  When when = When::kRuns;
};

std::vector<KillPoint> AllPoints() {
  std::vector<KillPoint> points;
  for (const char* name : wal::kFailpoints) {
    const bool opens = absl::StartsWith(name, "wal.open.");
    if (opens || absl::StartsWith(name, "wal.segment."))
      points.push_back({"queue", name, When::kStarts});
    if (!opens) points.push_back({"queue", name, When::kRuns});
  }

  for (const std::string call : {"set_job", "admit", "put", "seal", "lease_tasks", "renew",
                                 "acquire", "apply", "advance", "durable", "restore"}) {
    const When when = call == "restore"   ? When::kRestores
                      : call == "set_job" ? When::kSetJob
                                          : When::kRuns;
    for (const char* side : {"before", "after"})
      points.push_back({"queue", absl::StrCat("queue.", call, ".", side), when});
  }

  for (const char* name : {"granted", "put", "before_seal", "sealed"})
    points.push_back({"rollout", absl::StrCat("toy.rollout.", name)});
  for (const char* name : {"leased", "before_put", "scored"})
    points.push_back({"reward", absl::StrCat("toy.reward.", name)});
  for (const char* name : {"restored", "acquired", "before_apply", "applied", "before_checkpoint",
                           "checkpointed", "durable"}) {
    points.push_back({"trainer", absl::StrCat("toy.trainer.", name)});
  }

  for (const char* role : {"queue", "queue", "rollout", "reward", "trainer"})
    points.push_back({role, ""});
  return points;
}

constexpr std::array<const char*, 3> kRoles = {"trainer", "rollout", "reward"};

// Runs one job, that is its queue and its workers, and kills them.
class Matrix {
 public:
  Matrix(const MatrixOptions& options, const Regime& regime, Tally* tally)
      : options_(options),
        regime_(regime),
        dir_(absl::StrCat(options.dir, "/", regime.name)),
        tally_(*tally),
        // Each regime draws from a seed of its own.
        random_(options.seed * 1000 + static_cast<uint64_t>(regime.max_staleness) * 10 +
                (regime.durability == "full" ? 3 : 2)) {}

  absl::StatusOr<Verdict> Run(int kills) {
    SLUICE_RETURN_IF_ERROR(StartAll());
    const int end = tally_.kills() + kills;
    std::vector<KillPoint> walk;
    while (tally_.kills() < end) {
      if (walk.empty()) {
        walk = AllPoints();
        for (size_t i = walk.size(); i > 1; --i) std::swap(walk[i - 1], walk[random_.Below(i)]);
        // Points are taken from the back. Those that were never reached are moved there, because
        // it is a matter of chance which failpoints a job meets while they are armed.
        std::stable_partition(walk.begin(), walk.end(), [this](const KillPoint& point) {
          return tally_.SawKill(point.role, point.name);
        });
      }

      const KillPoint point = walk.back();
      walk.pop_back();
      if (absl::Status status = KillAt(point); !status.ok())
        return Annotate(status, absl::StrCat("kill of the ", point.role, " at ",
                                             point.name.empty() ? "random" : point.name));
    }
    return StopAndJudge();
  }

 private:
  struct Worker {
    int64_t incarnation = 0;
    std::unique_ptr<Process> process;
  };

  absl::Status StartAll() {
    SLUICE_RETURN_IF_ERROR(MakeDirs(dir_ + "/history"));
    std::string rows;
    for (int i = 0; i < 1000; ++i) absl::StrAppend(&rows, "{\"q\": \"", i, "\", \"a\": \"x\"}\n");
    SLUICE_RETURN_IF_ERROR(WriteFileAtomic(dir_ + "/rows.jsonl", rows));
    SLUICE_RETURN_IF_ERROR(StartQueue(""));
    for (const char* role : kRoles) SLUICE_RETURN_IF_ERROR(StartWorker(role, ""));
    for (const char* role : kRoles) SLUICE_RETURN_IF_ERROR(AwaitReady(role));
    return absl::OkStatus();
  }

  // The queue. ------------------------------------------------------------------------------------

  // Starts the queue with `failpoint` armed from its first moment. Fails if the queue dies before
  // it serves, or soon after.
  absl::Status StartQueue(const std::string& failpoint) {
    SLUICE_ASSIGN_OR_RETURN(
        queue_, Process::Start({.binary = "sluice-queue",
                                .args = {"--insecure-loopback", "--listen", address_, "--ops",
                                         "127.0.0.1:0", "--data-dir", dir_ + "/queue",
                                         "--log-level", "warning", "--log-segment-bytes",
                                         kSegmentBytes, "--log-snapshot-bytes", kSnapshotBytes},
                                .env = {{"SLUICE_FAILPOINTS", failpoint}},
                                .log = dir_ + "/queue.log"}));

    const absl::StatusOr<std::string> line = queue_->ReadLine(kToyPatience);
    if (!line.ok())
      return absl::AbortedError(
          absl::StrCat("the queue ended before it served; see ", dir_, "/queue.log"));

    address_ = nlohmann::json::parse(*line).at("listening");
    SLUICE_ASSIGN_OR_RETURN(channel_, rpc::Connect(address_, {rpc::Role::kQueue}));

    // With a failpoint the queue may die in this call, so that waiting long is useless. If it has
    // not died, the call is made again with full patience.
    if (failpoint.empty()) return SetJob(queue::v1::PHASE_OPEN);
    const absl::Status set = SetJob(queue::v1::PHASE_OPEN, kToyReach);
    return set.ok() || queue_->running() ? SetJob(queue::v1::PHASE_OPEN) : set;
  }

  absl::Status SetJob(queue::v1::Phase phase, absl::Duration patience = kToyPatience) {
    queue::v1::SetJobRequest request;
    FillCall(request.mutable_call());
    request.set_revision(++revision_);
    *request.mutable_spec() =
        ToySpec(dir_ + "/rows.jsonl", static_cast<uint32_t>(regime_.max_staleness),
                std::string(regime_.durability));
    request.set_phase(phase);

    for (const auto& [role, worker] : workers_) {
      common::v1::Worker& listed = *request.add_workers();
      listed.set_id(role + "-0");
      listed.set_role(role == "trainer"   ? rpc::v1::ROLE_TRAINER
                      : role == "rollout" ? rpc::v1::ROLE_ROLLOUT
                                          : rpc::v1::ROLE_REWARD);
      listed.set_incarnation(worker.incarnation);
    }

    queue::v1::SetJobResponse response;
    return rpc::Call(
        *channel_, request, &response,
        {.give_up = patience,
         .backoff = {.first = absl::Milliseconds(2), .longest = absl::Milliseconds(20)}});
  }

  absl::Status Arm(const std::string& name, const std::string& action) {
    admin::v1::FailpointRequest request;
    request.set_name(name);
    request.set_action(action);
    request.set_nth(1 + static_cast<uint32_t>(random_.Below(3)));
    admin::v1::FailpointResponse response;
    return rpc::Call(*channel_, request, &response);
  }

  absl::Status RestartQueue(const std::string& point) {
    const absl::Time death = absl::Now();
    tally_.AddKill(regime_.name, "queue", point);
    SLUICE_RETURN_IF_ERROR(StartQueue(""));
    tally_.AddRecovery("queue", absl::Now() - death);
    return absl::OkStatus();
  }

  absl::Status KillQueueAt(const KillPoint& point) {
    if (point.when == When::kStarts) {
      SLUICE_RETURN_IF_ERROR(KillNow(queue_.get()));
      tally_.AddKill(regime_.name, "queue", "");
      const absl::Status started = StartQueue(point.name + "=kill");
      if (started.ok()) (void)Arm(point.name, "");
      // In this start the failpoint was not reached.
      if (started.ok() && queue_->running()) return started;

      return WasKilled(queue_.get())
                 ? RestartQueue(point.name)
                 : absl::InternalError(absl::StrCat("it did not start; see ", dir_, "/queue.log"));
    }
    // The failpoint may kill the queue before the answer to Arm comes through.
    const absl::Status armed = Arm(point.name, "kill");
    if (!armed.ok() && !absl::IsUnavailable(armed) && !absl::IsDeadlineExceeded(armed))
      return armed;

    if (point.when == When::kRestores) {
      SLUICE_RETURN_IF_ERROR(KillNow(workers_.at("trainer").process.get()));
      tally_.AddKill(regime_.name, "trainer", "");
      const absl::Status started = StartWorker("trainer", "", absl::Seconds(1));
      if (!started.ok() && !absl::IsUnavailable(started) && !absl::IsDeadlineExceeded(started))
        return started;
    }

    for (int i = 0; point.when == When::kSetJob && i < 3; ++i)
      (void)SetJob(queue::v1::PHASE_OPEN, absl::Seconds(1));

    absl::StatusOr<int> end = queue_->Await(kToyReach);
    if (!end.ok()) {
      (void)Arm(point.name, "");
      end = queue_->Await(absl::ZeroDuration());
      if (!end.ok())
        return point.when == When::kRestores ? AwaitReady("trainer") : absl::OkStatus();
    }

    if (*end != -SIGKILL)
      return absl::InternalError(
          absl::StrCat("it ended with ", *end, "; see ", dir_, "/queue.log"));

    SLUICE_RETURN_IF_ERROR(RestartQueue(point.name));
    return point.when == When::kRestores ? AwaitReady("trainer") : absl::OkStatus();
  }

  // Workers. --------------------------------------------------------------------------------------

  absl::Status StartWorker(const std::string& role, const std::string& failpoint,
                           absl::Duration patience = kToyPatience) {
    Worker& worker = workers_[role];
    ++worker.incarnation;
    SLUICE_ASSIGN_OR_RETURN(
        worker.process,
        Process::Start({.binary = options_.self,
                        .args = {"--role", role, "--queue", address_, "--incarnation",
                                 absl::StrCat(worker.incarnation), "--dir", dir_, "--max-staleness",
                                 absl::StrCat(regime_.max_staleness), "--durability",
                                 std::string(regime_.durability)},
                        .env = {{"SLUICE_FAILPOINTS", failpoint}},
                        .log = dir_ + "/" + role + ".log"}));
    return SetJob(queue::v1::PHASE_OPEN, patience);
  }

  // Waits until the worker reports that it does its work.
  absl::Status AwaitReady(const std::string& role) {
    const absl::Time give_up = absl::Now() + kToyPatience;
    while (true) {
      const absl::StatusOr<std::string> line =
          workers_.at(role).process->ReadLine(absl::Milliseconds(100));
      if (line.ok()) return absl::OkStatus();
      SLUICE_RETURN_IF_ERROR(CheckWorkers(absl::ZeroDuration()));
      if (absl::Now() > give_up)
        return absl::DeadlineExceededError(
            absl::StrCat("the ", role, " did not come to work; see ", dir_));
    }
  }

  // Looks at each worker for a while. A worker that has ended by itself has found something wrong,
  // except for a trainer that must start again from its checkpoint because the queue lost its batch
  // (possible unless durability is full).
  absl::Status CheckWorkers(absl::Duration while_each) {
    for (const char* role : kRoles) {
      const absl::StatusOr<int> end = workers_.at(role).process->Await(while_each);
      if (!end.ok()) continue;
      if (*end == kRestoreMe && regime_.durability != "full") {
        SLUICE_RETURN_IF_ERROR(StartWorker(role, ""));
        continue;
      }
      return absl::InternalError(
          absl::StrCat("the ", role, " ended with ", *end, "; see ", dir_, "/", role, ".log"));
    }
    return absl::OkStatus();
  }

  absl::Status RestartWorker(const std::string& role, const std::string& point) {
    const absl::Time death = absl::Now();
    tally_.AddKill(regime_.name, role, point);
    SLUICE_RETURN_IF_ERROR(StartWorker(role, ""));
    SLUICE_RETURN_IF_ERROR(AwaitReady(role));
    tally_.AddRecovery(role, absl::Now() - death);
    return absl::OkStatus();
  }

  absl::Status KillWorkerAt(const KillPoint& point) {
    SLUICE_RETURN_IF_ERROR(KillNow(workers_.at(point.role).process.get()));
    if (point.name.empty()) return RestartWorker(point.role, "");

    tally_.AddKill(regime_.name, point.role, "");
    SLUICE_RETURN_IF_ERROR(
        StartWorker(point.role, absl::StrCat(point.name, "=kill@", 1 + random_.Below(4))));

    const absl::StatusOr<int> end = workers_.at(point.role).process->Await(kToyReach);
    if (!end.ok()) {  // Not reached. The worker is killed now, so that it does not die of it later.
      SLUICE_RETURN_IF_ERROR(KillNow(workers_.at(point.role).process.get()));
      return RestartWorker(point.role, "");
    }

    if (*end == kRestoreMe) return CheckWorkers(absl::ZeroDuration());
    if (*end != -SIGKILL)
      return absl::InternalError(
          absl::StrCat("it ended with ", *end, "; see ", dir_, "/", point.role, ".log"));
    return RestartWorker(point.role, point.name);
  }

  // Kills. ----------------------------------------------------------------------------------------

  // Sends SIGKILL and waits for the end. Fails if the process had ended by itself, except for a
  // trainer that asks to be restored.
  absl::Status KillNow(Process* process) {
    process->Signal(SIGKILL);
    SLUICE_ASSIGN_OR_RETURN(const int end, process->Await(kToyPatience));
    return end == -SIGKILL || end == kRestoreMe
               ? absl::OkStatus()
               : absl::InternalError(absl::StrCat("it had ended with ", end,
                                                  " before it was killed; see the logs in ", dir_));
  }

  bool WasKilled(Process* process) { return process->Await(kToyPatience).value_or(0) == -SIGKILL; }

  absl::Status KillAt(const KillPoint& point) {
    // First the job works undisturbed for a while.
    SLUICE_RETURN_IF_ERROR(CheckWorkers(absl::Milliseconds(random_.Below(30))));
    if (point.role != "queue") return KillWorkerAt(point);

    if (!point.name.empty()) return KillQueueAt(point);

    SLUICE_RETURN_IF_ERROR(KillNow(queue_.get()));
    if (random_.Below(4) != 0) return RestartQueue("");

    const char* const other = kRoles[random_.Below(kRoles.size())];  // Kill a worker as well.
    SLUICE_RETURN_IF_ERROR(KillNow(workers_.at(other).process.get()));
    SLUICE_RETURN_IF_ERROR(RestartQueue(""));
    return RestartWorker(other, "");
  }

  // The end. --------------------------------------------------------------------------------------

  // Lets the job work undisturbed up to the next checkpoint, where the trainer stops. Then stops
  // the others and judges the whole run.
  absl::StatusOr<Verdict> StopAndJudge() {
    SLUICE_RETURN_IF_ERROR(WriteFileAtomic(dir_ + "/stop", ""));

    for (const absl::Time give_up = absl::Now() + kToyPatience; true;) {
      const absl::StatusOr<int> end = workers_.at("trainer").process->Await(absl::Milliseconds(20));
      if (end.ok() && *end == 0) break;
      SLUICE_RETURN_IF_ERROR(CheckWorkers(absl::ZeroDuration()));
      if (absl::Now() > give_up)
        return absl::DeadlineExceededError(
            absl::StrCat("the trainer did not reach a checkpoint; see ", dir_));
    }

    for (const char* role : {"rollout", "reward"})
      SLUICE_RETURN_IF_ERROR(KillNow(workers_.at(role).process.get()));
    SLUICE_RETURN_IF_ERROR(SetJob(queue::v1::PHASE_HOLD));

    SLUICE_ASSIGN_OR_RETURN(Evidence evidence, GatherEvidence(dir_));
    evidence.durability = std::string(regime_.durability);
    evidence.max_staleness = regime_.max_staleness;

    queue::v1::StatsRequest stats;
    FillCall(stats.mutable_call());
    queue::v1::StatsResponse answer;
    SLUICE_RETURN_IF_ERROR(rpc::Call(*channel_, stats, &answer));
    evidence.ledger = answer.ledger();
    SLUICE_RETURN_IF_ERROR(ReadLive(answer.version(), &evidence.live));

    Verdict verdict = Judge(evidence);
    if (verdict.wrong.empty()) {
      for (const std::string& missed : SelfCheck(evidence))
        verdict.wrong.push_back("Judge() did not find " + missed);
    }

    SLUICE_RETURN_IF_ERROR(ReadViolations(&verdict));

    queue_->Signal(SIGTERM);
    SLUICE_ASSIGN_OR_RETURN(const int end, queue_->Await(kToyPatience));
    if (end != 0) verdict.wrong.push_back(absl::StrCat("the queue ended with ", end));
    return verdict;
  }

  template <typename F>
  absl::Status Peek(queue::v1::PeekWhat what, F f) {
    queue::v1::PeekRequest peek;
    FillCall(peek.mutable_call());
    peek.set_what(what);
    do {
      queue::v1::PeekResponse rows;
      SLUICE_RETURN_IF_ERROR(rpc::Call(*channel_, peek, &rows));
      for (const queue::v1::PeekRow& row : rows.rows()) f(row);
      peek.set_page(rows.page());
    } while (!peek.page().empty());
    return absl::OkStatus();
  }

  absl::Status ReadLive(int64_t version, std::set<std::string>* live) {
    return Peek(queue::v1::PEEK_WHAT_GROUPS, [&](const queue::v1::PeekRow& row) {
      const nlohmann::json group = nlohmann::json::parse(row.json());
      if (group.at("batch") >= 0 && group.at("batch") < version) return;  // Applied.
      int member = 0;
      for (const auto& json : group.at("members")) {
        // The ledger counts a member as live from its first grant on.
        const bool granted =
            json.at("state") != "reserved" || json.at("attempt") > 1 || json.at("worker") != "";
        if (json.at("state") != "dropped" && granted)
          live->insert(absl::StrCat(row.node().id(), ".", member));
        ++member;
      }
    });
  }

  absl::Status ReadViolations(Verdict* verdict) {
    return Peek(queue::v1::PEEK_WHAT_VIOLATIONS, [&](const queue::v1::PeekRow& row) {
      verdict->wrong.push_back(absl::StrCat("fsck: ", row.state(), " ", row.json()));
    });
  }

  void FillCall(common::v1::Call* call) const {
    call->mutable_job()->set_job(kJob);
    call->mutable_job()->set_worker("controller");
  }

  const MatrixOptions& options_;
  const Regime regime_;
  const std::string dir_;
  Tally& tally_;
  SplitMix64 random_;
  std::string address_ = "127.0.0.1:0";
  std::unique_ptr<Process> queue_;
  std::shared_ptr<rpc::Channel> channel_;
  uint64_t revision_ = 0;
  std::map<std::string, Worker> workers_;
};

}  // namespace

std::vector<std::pair<std::string, std::string>> ToyPoints() {
  std::vector<std::pair<std::string, std::string>> points;
  for (const KillPoint& point : AllPoints()) points.emplace_back(point.role, point.name);
  std::sort(points.begin(), points.end());
  points.erase(std::unique(points.begin(), points.end()), points.end());
  return points;
}

absl::StatusOr<Verdict> RunToyMatrix(const MatrixOptions& options, const Regime& regime, int kills,
                                     Tally* tally) {
  return Matrix(options, regime, tally).Run(kills);
}

}  // namespace sluice::fault
