// What people do to a job after its Submit (cancel, pause, resume and retry it, set its values,
// delete it), and to a daemon.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/controller/core/codec.h"
#include "services/controller/core/controller.h"

namespace sluice::controller {
namespace {

// The error of a verb that the job's state contradicts. `instead` says what would work.
absl::Status ContradictionError(const JobRecord& record, absl::string_view verb,
                                std::string instead) {
  return ErrorWith(
      absl::StatusCode::kFailedPrecondition,
      {.reason = "NOT_YET", .catalogue = "SLUICE-CTL-0020", .hint = std::move(instead)},
      absl::StrCat("job ", record.name, " is ", StateName(record.state), "; it cannot be ", verb));
}

}  // namespace

absl::StatusOr<bool> Controller::Cancel(Instant now, const std::string& id_or_name, bool at_once) {
  SLUICE_ASSIGN_OR_RETURN(const Job* found, Find(id_or_name));
  Job& job = jobs_.at(found->record.id);
  const JobState state = job.record.state;
  if (state == JobState::kCancelled) return true;

  if (state == JobState::kCancelling) {
    // A second cancel with `at_once` does not wait for the checkpoint any longer.
    if (at_once && job.record.stage == Stage::kStopTrainers) {
      job.record.stop_checkpoint = false;
      EnterStage(now, job, Stage::kStopAll);
    }
    return true;
  }

  const std::string message = at_once ? "cancelled at once" : "cancelled";
  if (state == JobState::kPausing) {
    // The daemons leave already, so the end goes on from the stage that the pause has reached.
    job.record.target = JobState::kCancelled;
    SetState(now, job, JobState::kCancelling, "", message);
    if (at_once) (void)Cancel(now, job.record.id, true);
    staff_due_ = true;
    return false;
  }

  if (state == JobState::kPaused) EndPause(now, job);
  else if (!job.live())
    return ContradictionError(job.record, "cancelled any more",
                              absl::StrCat("see `sluice job describe ", job.record.name, "`"));
  BeginEnd(now, job, JobState::kCancelled, !at_once, "", message);
  return false;
}

absl::StatusOr<bool> Controller::Pause(Instant now, const std::string& id_or_name) {
  SLUICE_ASSIGN_OR_RETURN(const Job* found, Find(id_or_name));
  Job& job = jobs_.at(found->record.id);
  const JobState state = job.record.state;
  if (state == JobState::kPausing || state == JobState::kPaused) return true;
  if (!job.live())
    return ContradictionError(
        job.record, "paused",
        IsFinal(state) ? "only a job that has not ended can be paused"
                       : absl::StrCat("wait for its end: `sluice job wait ", job.record.name, "`"));

  BeginEnd(now, job, JobState::kPaused, true, "",
           "the trainer ends its step and writes a checkpoint");
  return false;
}

absl::StatusOr<bool> Controller::Resume(Instant now, const std::string& id_or_name) {
  SLUICE_ASSIGN_OR_RETURN(const Job* found, Find(id_or_name));
  Job& job = jobs_.at(found->record.id);
  if (job.live()) return true;
  if (job.record.state != JobState::kPaused) {
    const std::string& name = job.record.name;
    return ContradictionError(
        job.record, "resumed",
        job.record.state == JobState::kPausing
            ? absl::StrCat("wait until it is paused: `sluice job wait ", name, " --for PAUSED`")
        : job.record.state == JobState::kFailed || job.record.state == JobState::kCancelled
            ? absl::StrCat("`sluice job retry ", name, "` goes on from its last checkpoint")
            : "only a paused job can be resumed");
  }

  EndPause(now, job);
  SetState(now, job, JobState::kWaiting, "", "");
  staff_due_ = true;
  return false;
}

// The time of a pause does not count as running time, so the start of that moves by it.
void Controller::EndPause(Instant now, Job& job) {
  const absl::Duration pause = std::max(now.wall - job.record.paused, absl::ZeroDuration());
  job.record.paused = absl::InfiniteFuture();
  job.record.running_since += pause;
  job.running_since += pause;
}

absl::StatusOr<bool> Controller::Retry(Instant now, const RetryInput& input) {
  SLUICE_ASSIGN_OR_RETURN(const Job* found, Find(input.job));
  Job& job = jobs_.at(found->record.id);
  JobRecord& record = job.record;
  if (!IsFinal(record.state)) {
    if (record.retried >= 0 && record.retried == input.incarnation) return true;
    return ContradictionError(record, "retried", "only a FAILED or CANCELLED job can be retried");
  }
  if (record.state == JobState::kSucceeded)
    return ContradictionError(record, "retried",
                              "submit its file again, with a larger limits.max_steps or another "
                              "name");
  if (input.incarnation != job.assign.trainer_incarnation) {
    return ErrorWith(
        absl::StatusCode::kFailedPrecondition,
        {.reason = "NOT_YET",
         .catalogue = "SLUICE-CTL-0021",
         .hint = absl::StrCat("look at it again: `sluice job describe ", record.name, "`")},
        absl::StrCat("job ", record.name, " has incarnation ", job.assign.trainer_incarnation,
                     " of its trainers by now, not ", input.incarnation));
  }
  SLUICE_RETURN_IF_ERROR(CheckFreed(job, "retried"));
  SLUICE_RETURN_IF_ERROR(CheckQuota(record.owner, input.max_jobs));

  std::string& holder = names_[record.name];
  if (holder != record.id) {
    // The name may also be free, if a later job of this name was deleted.
    if (!holder.empty() && !IsFinal(jobs_.at(holder).record.state)) {
      return ErrorWith(absl::StatusCode::kAlreadyExists,
                       {.reason = "CONFLICT",
                        .catalogue = "SLUICE-CTL-0005",
                        .hint = "end that job first, or wait for its end",
                        .current = holder},
                       absl::StrCat("a later job has the name ", record.name, " and is ",
                                    StateName(jobs_.at(holder).record.state)));
    }
    holder = record.id;
    PutGuarded(NameKey(record.name), record.id);
  }

  record.retried = job.assign.trainer_incarnation;
  record.stage = Stage::kNone;
  record.ended = record.running_since = absl::InfiniteFuture();
  job.running_since = absl::InfiniteDuration();
  record.restarted.clear();
  record.ledger_final = false;
  job.stage_durations.clear();
  out_.ops.push_back({JobKey(record.id, "result"), std::nullopt});

  // Its queue has freed the data, so any queue will do. The trainers restore it from the cursor of
  // their checkpoint.
  job.assign.queue.clear();
  job.assign.queue_incarnation = 0;
  job.assign.queue_lost_job = true;
  job.assign.opened = job.assign.trainers_complete = false;
  job.assign.phase = QueuePhase::kOpen;
  job.acked_revision = job.assign.revision;

  job.spec = input.stored.spec;
  job.steps = input.stored.steps;
  for (const auto& [k, step] : job.steps) job.learning.Add(step.signal);
  active_.insert(record.id);
  SetState(now, job, JobState::kWaiting, "", "");
  staff_due_ = true;
  return false;
}

absl::StatusOr<bool> Controller::SetSpec(Instant now, const std::string& id_or_name,
                                         std::string spec, Needs needs,
                                         const std::string& changes) {
  SLUICE_ASSIGN_OR_RETURN(const Job* found, Find(id_or_name));
  Job& job = jobs_.at(found->record.id);
  if (!job.live() && job.record.state != JobState::kPaused) {
    return ContradictionError(job.record, "changed",
                              "values can be set while a job waits, runs or is paused");
  }
  if (job.spec == spec) return true;
  job.record.needs = std::move(needs);
  out_.ops.push_back({JobKey(job.record.id, "spec"), spec});
  job.spec = std::move(spec);
  Emit(now, job, Severity::kInfo, "controller", "", "spec", changes);
  staff_due_ = true;
  return false;
}

// The queue of an ended job still has its data until the stage kOver.
absl::Status Controller::CheckFreed(const Job& job, absl::string_view verb) const {
  if (job.record.stage == Stage::kOver) return absl::OkStatus();
  const std::string message =
      absl::StrCat("queue ", job.assign.queue, " has not freed the data of job ", job.record.name,
                   " yet; it cannot be ", verb);
  const auto queue = fleet_.daemons().find(job.assign.queue);
  if (queue != fleet_.daemons().end() && queue->second.present()) {
    return ErrorWith(absl::StatusCode::kUnavailable,
                     {.reason = "NOT_FREED", .retry_after = absl::Milliseconds(100)}, message);
  }
  return ErrorWith(absl::StatusCode::kFailedPrecondition,
                   {.reason = "NOT_YET",
                    .catalogue = "SLUICE-CTL-0022",
                    .hint = absl::StrCat("start queue ", job.assign.queue, " again")},
                   message);
}

absl::Status Controller::Delete(const std::string& id_or_name,
                                const std::vector<std::string>& keys) {
  SLUICE_ASSIGN_OR_RETURN(const Job* found, Find(id_or_name));
  const Job& job = *found;
  const std::string id = job.record.id, name = job.record.name;
  if (!IsFinal(job.record.state))
    return ContradictionError(job.record, "deleted",
                              absl::StrCat("end it first: `sluice job cancel ", name, "`"));
  SLUICE_RETURN_IF_ERROR(CheckFreed(job, "deleted"));

  for (const std::string& key : keys) out_.ops.push_back({key, std::nullopt});
  RemoveGuarded(AssignKey(id));
  if (const auto known = names_.find(name); known != names_.end() && known->second == id) {
    RemoveGuarded(NameKey(name));
    names_.erase(known);
  }
  unsaved_.erase(id);
  jobs_.erase(id);
  out_.jobs.insert(id);
  return absl::OkStatus();
}

absl::Status Controller::Drain(Instant now, const std::string& id, bool on) {
  Daemon* const daemon = fleet_.Find(id);
  if (daemon == nullptr) {
    return ErrorWith(
        absl::StatusCode::kNotFound,
        {.reason = "DAEMON", .catalogue = "SLUICE-CTL-0023", .hint = "see `sluice daemon list`"},
        absl::StrCat("there is no daemon \"", id.substr(0, 80), "\""));
  }
  if (daemon->record.drained == on) return absl::OkStatus();
  daemon->record.drained = on;
  daemon->record.unknown_jobs.clear();  // From now on it is told to leave them.
  Save(*daemon);
  staff_due_ = true;
  for (const std::string& job : active_) {
    const AssignRecord& assign = jobs_.at(job).assign;
    if (assign.queue != id && assign.Find(id) == nullptr) continue;
    Emit(now, jobs_.at(job), Severity::kInfo, RoleName(daemon->record.role), id, "drain",
         absl::StrCat("an operator ", on ? "drains " : "has ended the drain of ", id));
  }
  return absl::OkStatus();
}

}  // namespace sluice::controller
