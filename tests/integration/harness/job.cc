#include "tests/integration/harness/job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "common/rpc/backoff.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/rpc/stream.h"
#include "services/trainer/core/lineage.h"

namespace sluice::integration {
namespace {

bool IsFinal(job::v1::JobState state) {
  return state == job::v1::JOB_STATE_SUCCEEDED || state == job::v1::JOB_STATE_CANCELLED ||
         state == job::v1::JOB_STATE_FAILED;
}

}  // namespace

std::string Text(const job::v1::JobStatus& status) {
  job::v1::JobStatus brief = status;
  brief.clear_spec();
  return brief.DebugString();
}

absl::StatusOr<std::unique_ptr<Job>> Job::Submit(Cluster* cluster, const std::string& file,
                                                 std::vector<std::string> sets) {
  const JobFile loaded = ReadJobFile(file, {.sets = std::move(sets)});
  SLUICE_RETURN_IF_ERROR(ProblemStatus(loaded.problems));

  job::v1::SubmitRequest request;
  request.set_name(loaded.spec->name());
  request.set_hash(loaded.hash);
  *request.mutable_spec() = *loaded.spec;
  request.mutable_origins()->insert(loaded.origins.begin(), loaded.origins.end());

  job::v1::SubmitResponse response;
  SLUICE_RETURN_IF_ERROR(rpc::Call(cluster->controller(), request, &response));
  return std::unique_ptr<Job>(new Job(cluster, response.job()));
}

Job::Job(Cluster* cluster, std::string id)
    : cluster_(cluster), id_(std::move(id)), thread_([this] { FollowWatch(); }) {}

Job::~Job() {
  cancel_.Trigger();
  thread_.join();
}

void Job::FollowWatch() {
  rpc::Backoff backoff({.longest = absl::Milliseconds(500)});
  do {
    ReadWatch();
  } while (!cancel_.WaitFor(backoff.Next()));
}

void Job::ReadWatch() {
  job::v1::WatchRequest request;
  request.set_job(id_);
  request.set_follow(true);
  {
    MutexLock lock(&mu_);
    if (!events_.empty()) request.set_after_event(events_.back().seq());
    if (!reports_.empty()) request.set_after_step(reports_.back().k());
  }

  rpc::ClientStream stream(cluster_->controller(), *request.GetDescriptor(), &cancel_);
  if (!stream.Write(request)) return;
  stream.WritesDone();
  job::v1::WatchResponse response;
  while (stream.Read(&response)) {
    MutexLock lock(&mu_);
    if (response.has_status()) status_ = response.status();
    if (response.has_event()) events_.push_back(response.event());
    if (response.has_step()) reports_.push_back(response.step());
    changed_.NotifyAll();
  }
}

absl::Status Job::Await(const std::function<bool()>& done, absl::string_view what,
                        absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  MutexLock lock(&mu_);
  while (!done()) {
    // When the watch is opened again, the final status may come before the steps that were missed.
    const bool has_all_steps =
        status_.step() == 0 || (!reports_.empty() && reports_.back().k() + 1 >= status_.step());
    if (IsFinal(status_.state()) && has_all_steps) {
      return absl::FailedPreconditionError(
          absl::StrCat("waiting for ", what, ", the job ended: ", Text(status_)));
    }
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("waiting for ", what, ": ", Text(status_), reports_.size(), " reports"));
    }
    changed_.WaitFor(&mu_, deadline - absl::Now());
  }
  return absl::OkStatus();
}

absl::Status Job::AwaitStep(int64_t k, absl::Duration timeout) {
  return Await(
      [&]()
          ABSL_NO_THREAD_SAFETY_ANALYSIS { return !reports_.empty() && reports_.back().k() >= k; },
      absl::StrCat("step ", k), timeout);
}

absl::Status Job::AwaitStepsSince(absl::Time since, int64_t count, absl::Duration timeout) {
  const auto seen = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return std::count_if(reports_.begin(), reports_.end(), [&](const job::v1::StepReport& report) {
             return rpc::FromProto(report.at()) > since;
           }) >= count;
  };
  return Await(seen, absl::StrCat(count, " steps since ", absl::FormatTime(since)), timeout);
}

absl::Status Job::AwaitStatus(const std::function<bool(const job::v1::JobStatus&)>& what,
                              absl::Duration timeout) {
  return Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return what(status_); }, "a status", timeout);
}

absl::Status Job::AwaitState(job::v1::JobState state, absl::Duration timeout) {
  return Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return status_.state() == state; },
               job::v1::JobState_Name(state), timeout);
}

absl::Status Job::AwaitEvent(absl::string_view code, absl::Duration timeout) {
  const auto seen = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return std::any_of(events_.begin(), events_.end(),
                       [&](const common::v1::Event& event) { return event.code() == code; });
  };
  return Await(seen, absl::StrCat("event ", code), timeout);
}

absl::StatusOr<job::v1::JobStatus> Job::AwaitEnd(absl::Duration timeout) {
  const absl::Status ended =
      Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return IsFinal(status_.state()); }, "the end",
            timeout);
  if (!ended.ok()) return ended;

  job::v1::GetRequest request;
  request.set_job(id_);
  job::v1::JobStatus status;
  SLUICE_RETURN_IF_ERROR(rpc::Call(cluster_->controller(), request, &status));
  return status;
}

int64_t Job::steps() const {
  MutexLock lock(&mu_);
  return reports_.empty() ? 0 : reports_.back().k() + 1;
}

std::vector<job::v1::StepReport> Job::reports() const {
  MutexLock lock(&mu_);
  return reports_;
}

std::vector<common::v1::Event> Job::events() const {
  MutexLock lock(&mu_);
  return events_;
}

job::v1::JobStatus Job::status() const {
  MutexLock lock(&mu_);
  return status_;
}

absl::StatusOr<std::unique_ptr<Job>> SubmitDigits(Cluster* cluster, int steps,
                                                  std::vector<std::string> more) {
  std::vector<std::string> sets = {absl::StrCat("limits.max_steps=", steps),
                                   "limits.wall=5m",
                                   "queue.groups_per_step=4",
                                   "rollout.group.size=4",
                                   "rollout.group.min=4",
                                   "checkpoint.every_steps=4",
                                   absl::StrCat("checkpoint.dir=", cluster->dir(), "/checkpoints")};
  sets.insert(sets.end(), more.begin(), more.end());
  return Job::Submit(cluster, SLUICE_SOURCE_DIR "/configs/examples/digits.yaml", std::move(sets));
}

absl::Status CheckLedgerBalances(const job::v1::JobStatus& status, bool gave_up_durable_steps) {
  const common::v1::Ledger& ledger = status.result().ledger();
  int64_t dropped = 0;
  for (const auto& [reason, count] : ledger.dropped()) dropped += count;
  if (ledger.accepted() == 0 ||
      ledger.accepted() != ledger.durable() + ledger.applied() + ledger.live() + dropped ||
      ledger.live() != 0) {
    return absl::DataLossError(absl::StrCat("the ledger does not balance: ", ledger.DebugString()));
  }

  const std::string file = status.result().checkpoint() + "/lineage.jsonl";
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  SLUICE_ASSIGN_OR_RETURN(const trainer::LineageSummary lineage,
                          trainer::CheckLineage(text, ledger.durable_version()));
  if (lineage.hash != ledger.hash()) {
    return absl::DataLossError(absl::StrCat(file, " gives the hash ", ToHex(lineage.hash),
                                            ", the ledger has ", ToHex(ledger.hash())));
  }

  // If the job gave up durable steps, the ledger also counts the branch that they are on.
  const int64_t counted = ledger.durable() + ledger.applied();
  if (gave_up_durable_steps ? lineage.trajectories >= counted : lineage.trajectories != counted) {
    return absl::DataLossError(
        absl::StrCat(file, " has ", lineage.trajectories, " trajectories: ", ledger.DebugString()));
  }
  return absl::OkStatus();
}

}  // namespace sluice::integration
