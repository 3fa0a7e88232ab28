// The states, limits and ends of jobs.

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/base/status_text.h"
#include "services/controller/core/codec.h"
#include "services/controller/core/controller.h"

namespace sluice::controller {
namespace {
// Time for rollouts and rewards to finish and leave.
constexpr absl::Duration kLeaveTime = absl::Seconds(10);
// Time for the queue to complete the ledger. A queue that is lost may come back meanwhile.
constexpr absl::Duration kCloseTime = absl::Seconds(15);
// Time for a queue that is present to free the data. Afterwards this is left to the operator.
constexpr absl::Duration kFreeTime = absl::Seconds(60);
// Least time between two diagnoses of a stalled job.
constexpr absl::Duration kDiagnoseEvery = absl::Seconds(10);
constexpr char kWallEnd[] = "ended by limits.wall ";
constexpr char kNoStepCode[] = "SLUICE-CTL-0018";

// The message of a job that ends without a trained step. Such a job fails, whatever ended it.
std::string NoStepText(const std::string& name, const std::string& why) {
  return absl::StrCat("no step was trained: ", why, "; `sluice job describe ", name,
                      "` shows what became of the samples, and `sluice job events ", name,
                      "` shows what happened");
}

// Says how long each stage of the end took, because the end may take longer than a user expects.
std::string EndText(const Job& job, absl::Duration ledger) {
  const auto took = [&](Stage stage) {
    const auto it = job.stage_durations.find(stage);
    return it == job.stage_durations.end() ? absl::ZeroDuration() : it->second;
  };
  const absl::Duration trainers = took(Stage::kStopTrainers), others = took(Stage::kStopAll);
  return absl::StrCat("the end took ", DurationText(trainers + others + ledger), ": ",
                      DurationText(trainers), " for the step under way and the last checkpoint, ",
                      DurationText(others), " until all daemons had left, ", DurationText(ledger),
                      " for the queue to complete the ledger");
}

}  // namespace

void Controller::Advance(Instant now, Job& job) {
  // AdvanceLive() may begin the end, whose first stage may be over at once.
  if (job.live()) AdvanceLive(now, job);
  if (job.record.stage != Stage::kNone) AdvanceEnding(now, job);
}

const Progress* Controller::ProgressOf(const Job& job, const Worker& worker) const {
  const auto daemon = fleet_.daemons().find(worker.id);
  if (daemon == fleet_.daemons().end()) return nullptr;
  const auto progress = daemon->second.progress.find(job.record.id);
  const int64_t incarnation =
      worker.role == Role::kTrainer ? job.assign.trainer_incarnation : worker.incarnation;
  const bool is_this =
      progress != daemon->second.progress.end() && progress->second.incarnation == incarnation;
  return is_this ? &progress->second : nullptr;
}

int Controller::CountReady(const Job& job, Role role) const {
  return static_cast<int>(absl::c_count_if(job.assign.workers, [&](const Worker& worker) {
    const Progress* const progress = ProgressOf(job, worker);
    return worker.role == role && !worker.leaving && progress != nullptr && progress->ready;
  }));
}

std::string Controller::WhyNotReady(const Job& job, Role role) const {
  for (const Worker& worker : job.assign.workers) {
    const Progress* const progress = ProgressOf(job, worker);
    const bool waits = worker.role == role && progress != nullptr && !progress->ready;
    if (waits && !progress->phase.empty()) return absl::StrCat(worker.id, ": ", progress->phase);
  }
  return "";
}

bool Controller::TrainersReady(const Job& job) const {
  return job.assign.trainers_complete &&
         CountReady(job, Role::kTrainer) >= job.record.needs.trainers.min;
}

bool Controller::QueueServes(const Job& job) const {
  const auto queue = fleet_.daemons().find(job.assign.queue);
  return queue != fleet_.daemons().end() && queue->second.present() && job.assign.opened &&
         job.assign.queue_incarnation == queue->second.record.incarnation;
}

std::string Controller::WhyQueueDoesNotServe(const Job& job) const {
  if (QueueServes(job) || job.assign.queue.empty()) return "";
  const auto queue = fleet_.daemons().find(job.assign.queue);
  if (queue == fleet_.daemons().end() || !queue->second.present())
    return absl::StrCat("queue ", job.assign.queue, " is lost");
  if (!job.assign.opened) {
    const std::string why = job.queue_refusal.empty() ? "" : absl::StrCat(": ", job.queue_refusal);
    return absl::StrCat("queue ", job.assign.queue, " has not taken the job yet", why);
  }
  return absl::StrCat("queue ", job.assign.queue,
                      " was started anew and has not taken the job up again yet");
}

std::vector<std::string> Controller::ListNotReady(const Job& job) const {
  std::vector<std::string> missing;
  if (std::string queue = WhyQueueDoesNotServe(job); !queue.empty())
    missing.push_back(std::move(queue));
  for (const Role role : {Role::kTrainer, Role::kRollout, Role::kReward}) {
    const int ready = CountReady(job, role), min = job.record.needs.of(role).min;
    if (ready >= min) continue;
    missing.push_back(
        absl::StrCat(ready, " of ", min, " ", RoleName(role), min == 1 ? "" : "s", " ready"));
    if (const std::string why = WhyNotReady(job, role); !why.empty())
      absl::StrAppend(&missing.back(), " (", why, ")");
  }
  return missing;
}

void Controller::AdvanceLive(Instant now, Job& job) {
  RemoveLeftWorkers(now, job);
  switch (job.record.state) {
    case JobState::kWaiting: return;  // StaffJobs() starts it.
    case JobState::kStarting:
    case JobState::kRecovering: {
      // A recovered job may go on with fewer rollouts and rewards than the minimum; it is then
      // Degraded.
      const bool can_train = QueueServes(job) && TrainersReady(job);
      if (job.record.state == JobState::kRecovering ? can_train
                                                    : can_train && ListNotReady(job).empty()) {
        if (job.record.running_since == absl::InfiniteFuture()) {
          job.record.running_since = now.wall;
          job.running_since = now.mono;
        }
        SetState(now, job, JobState::kRunning, "", "");
      }
      break;
    }
    case JobState::kRunning:
      // Only the stored state and lost daemons count here, and not who has reported that it is
      // ready: right after the controller's own start no daemon has reported that yet.
      if (const std::string queue = WhyQueueDoesNotServe(job); !queue.empty()) {
        SetState(now, job, JobState::kRecovering, "SLUICE-CTL-0011", queue);
      } else if (!job.assign.trainers_complete) {
        SetState(now, job, JobState::kRecovering, "SLUICE-CTL-0012",
                 "a trainer is missing; the job waits for a new trainer group");
      }
      break;
    default: return;
  }
  ApplyLimits(now, job);
}

void Controller::ApplyLimits(Instant now, Job& job) {
  const Needs& needs = job.record.needs;
  if (job.running_since != absl::InfiniteDuration() && now.mono - job.running_since >= needs.wall) {
    Emit(now, job, Severity::kInfo, "controller", "", "limit",
         absl::StrCat("limits.wall, ", DurationText(needs.wall),
                      ", has passed; the trainer ends the step under way and writes the last "
                      "checkpoint, within ",
                      DurationText(needs.start), " (limits.start)"));
    return BeginEnd(now, job, JobState::kSucceeded, true, "",
                    absl::StrCat(kWallEnd, DurationText(needs.wall)));
  }

  if (job.record.state == JobState::kStarting && now.mono - job.state_since >= needs.start) {
    return Fail(
        now, job, "SLUICE-CTL-0013",
        absl::StrCat("the job is not running ", DurationText(needs.start),
                     " (limits.start) after its start: ", absl::StrJoin(ListNotReady(job), ", "),
                     "; see the logs of those daemons, or raise limits.start"));
  }

  const auto has = [](const std::vector<std::string>& in, const char* what) {
    return std::count(in.begin(), in.end(), what) > 0;
  };
  const bool stalled = has(job.record.conditions, "Stalled");

  std::vector<std::string> conditions;
  if (job.record.state != JobState::kStarting) {
    const absl::Duration since_advance = now.mono - job.last_advance;
    if (since_advance >= needs.stall_fail && !QueueServes(job)) {
      return Fail(now, job, "SLUICE-CTL-0014",
                  absl::StrCat("no step has ended for ", DurationText(since_advance),
                               " (limits.stall_fail is ", DurationText(needs.stall_fail),
                               "): ", WhyQueueDoesNotServe(job),
                               "; see its log. A job goes on if its queue is started again in "
                               "time, under the same id and on the same data directory; the "
                               "job's last checkpoint: ",
                               job.record.checkpoint.empty() ? "none" : job.record.checkpoint));
    }

    if (since_advance >= needs.stall_fail) {
      return Fail(now, job, "SLUICE-CTL-0015",
                  absl::StrCat("no step has ended for ", DurationText(since_advance),
                               " (limits.stall_fail is ", DurationText(needs.stall_fail), "): ",
                               job.diagnosis.empty() ? absl::StrJoin(ListNotReady(job), ", ")
                                                     : job.diagnosis));
    }

    // Another state or a restart of the controller begins the time anew, but only a step ends a
    // stall.
    const bool no_step_since = job.last_step < job.last_advance;
    if (since_advance >= needs.stall_warn || (stalled && no_step_since))
      conditions.push_back("Stalled");
    if (since_advance >= needs.stall_warn &&
        now.mono - job.diagnosis_asked >= std::max(needs.stall_warn, kDiagnoseEvery)) {
      job.diagnosis_asked = now.mono;
      out_.diagnose.push_back(job.record.id);
    }

    if (CountReady(job, Role::kRollout) < needs.rollouts.min ||
        CountReady(job, Role::kReward) < needs.rewards.min) {
      conditions.push_back("Degraded");
    }
    for (const Finding finding : kFindings) {
      if (job.learning.holds(finding)) conditions.emplace_back(ConditionName(finding));
    }
  }

  if (conditions == job.record.conditions) return;
  const bool stalls = has(conditions, "Stalled");
  job.record.conditions = std::move(conditions);
  if (stalled && !stalls) {
    job.diagnosis_asked = -absl::InfiniteDuration();
    job.diagnosis.clear();
    Emit(now, job, Severity::kInfo, "controller", "", "moving", "steps advance again");
  }
  MarkChanged(job);
}

void Controller::OnDiagnosis(Instant now, const std::string& id, const std::string& text) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end() || !it->second.live()) return;
  Job& job = it->second;
  const auto& conditions = job.record.conditions;
  if (std::find(conditions.begin(), conditions.end(), "Stalled") == conditions.end()) return;

  const bool first = job.diagnosis.empty();
  job.diagnosis = text.empty() ? absl::StrCat("`sluice why ", job.record.name,
                                              "` finds nothing that the job waits for")
                               : text;
  if (first)
    Emit(now, job, Severity::kWarning, "controller", "", "stalled",
         absl::StrCat("no step has ended for ", DurationText(now.mono - job.last_advance), ": ",
                      job.diagnosis));
}

void Controller::SetState(Instant now, Job& job, JobState state, std::string code,
                          std::string message) {
  const JobState before = job.record.state;
  job.record.state = state;
  job.record.code = std::move(code);
  job.record.message = std::move(message);
  if (before == state) return MarkChanged(job);

  job.record.since = now.wall;
  job.state_since = now.mono;
  job.last_advance = now.mono;
  const Severity severity = state == JobState::kFailed       ? Severity::kError
                            : state == JobState::kRecovering ? Severity::kWarning
                                                             : Severity::kInfo;
  Emit(now, job, severity, "controller", "", "state",
       absl::StrCat(StateName(before), " -> ", StateName(state),
                    job.record.message.empty() ? "" : ": ", job.record.message));
}

void Controller::OnTrainerDone(Instant now, Job& job, const std::string& why) {
  if (job.record.step == 0) {
    return Fail(now, job, kNoStepCode,
                NoStepText(job.record.name, why.empty() ? "the trainer is done" : why));
  }
  BeginEnd(now, job, JobState::kSucceeded, false, "", "");
}

void Controller::Fail(Instant now, Job& job, std::string code, std::string message) {
  BeginEnd(now, job, JobState::kFailed, false, std::move(code), std::move(message));
}

// Begins the end, or a pause. The state FINISHING, CANCELLING or PAUSING is stored before anything
// is undone, so a restarted controller goes on with it. A failure shows its code and cause from
// here on.
void Controller::BeginEnd(Instant now, Job& job, JobState target, bool checkpoint, std::string code,
                          std::string message) {
  job.record.target = target;
  job.record.stop_checkpoint = checkpoint;
  job.record.conditions.clear();

  const JobState ending = target == JobState::kCancelled ? JobState::kCancelling
                          : target == JobState::kPaused  ? JobState::kPausing
                                                         : JobState::kFinishing;
  SetState(now, job, ending, std::move(code), std::move(message));
  EnterStage(now, job,
             // Only a trainer group that is there can write a checkpoint.
             checkpoint && job.started() && job.assign.trainers_complete ? Stage::kStopTrainers
                                                                         : Stage::kStopAll);
}

void Controller::EnterStage(Instant now, Job& job, Stage stage) {
  SLUICE_CHECK(stage > job.record.stage);  // An end only goes forward.
  if (job.record.stage != Stage::kNone) {
    job.stage_durations[job.record.stage] += now.mono - job.stage_since;
  }

  job.record.stage = stage;
  job.stage_since = now.mono;

  const QueuePhase phase = stage <= Stage::kStopAll   ? QueuePhase::kHold
                           : stage == Stage::kClosing ? QueuePhase::kClosed
                                                      : QueuePhase::kFreed;
  // Revision 0: the queue has never heard of the job, so there is nothing to end there.
  if (job.assign.revision > 0 && job.assign.phase != phase && stage != Stage::kOver) {
    job.assign.phase = phase;
    ++job.assign.revision;
    job.call_not_before = now.mono;
  }

  if (stage == Stage::kOver) {
    active_.erase(job.record.id);
    job.spec.clear();
    job.steps.clear();
    job.learning = {};
  }
  staff_due_ = true;
  MarkChanged(job);
}

// A worker has left a job when it is lost, or when it has applied the assignments that say STOP or
// HOLD and either reports no progress of the job any more or says that it no longer works on it.
bool Controller::HasLeft(const Job& job, const Worker& worker) const {
  const auto daemon = fleet_.daemons().find(worker.id);
  const auto desired = desired_.find(worker.id);
  if (daemon == fleet_.daemons().end() || !daemon->second.present()) return true;
  if (desired == desired_.end() || daemon->second.generation_applied < desired->second.generation)
    return false;

  const auto& assignments = desired->second.assignments;
  const auto assignment =
      std::find_if(assignments.begin(), assignments.end(),
                   [&](const DaemonAssignment& p) { return p.job == job.record.id; });
  // If the queue has the job, the STOP is still to be handed out; else the daemon was never told of
  // the job.
  if (assignment == assignments.end()) return !job.assign.opened;
  if (assignment->phase == AssignmentPhase::kRun) return false;

  const auto progress = daemon->second.progress.find(job.record.id);
  if (progress == daemon->second.progress.end()) return true;
  const std::string& phase = progress->second.phase;
  // `restore` counts too, because no new trainer group is formed for an ending job.
  return phase == "done" || phase == "failed" || phase == "restore";
}

void Controller::AdvanceEnding(Instant now, Job& job) {
  // Time in the present stage. EnterStage() begins it anew, and one pass may go through stages.
  const auto spent = [&] { return now.mono - job.stage_since; };
  const auto all_left = [&](bool trainers_only) {
    return std::all_of(
        job.assign.workers.begin(), job.assign.workers.end(), [&](const Worker& worker) {
          return (trainers_only && worker.role != Role::kTrainer) || HasLeft(job, worker);
        });
  };
  const auto queue = fleet_.daemons().find(job.assign.queue);
  const bool queue_there = queue != fleet_.daemons().end() && queue->second.present();
  // Revision 0: no SetJob was ever due, so the queue has never heard of the job.
  const bool queue_may_know_job = job.assign.revision > 0;

  if (job.record.stage == Stage::kStopTrainers) {
    const bool late = spent() >= job.record.needs.start;
    if (late) {
      Emit(now, job, Severity::kError, "controller", "", "late",
           absl::StrCat("the trainer did not leave within ", DurationText(spent()), "; the job ",
                        job.record.target == JobState::kPaused ? "is paused" : "ends",
                        " without a last checkpoint"));
    }
    if (late || all_left(true)) EnterStage(now, job, Stage::kStopAll);
  }

  if (job.record.stage == Stage::kStopAll && (spent() >= kLeaveTime || all_left(false))) {
    if (job.record.target == JobState::kPaused) return FinishPause(now, job);
    EnterStage(now, job, Stage::kClosing);
  }

  if (job.record.stage == Stage::kClosing && (!queue_may_know_job || spent() >= kCloseTime)) {
    if (queue_may_know_job) {
      Emit(now, job, Severity::kWarning, "controller", "", "ledger",
           absl::StrCat("queue ", job.assign.queue,
                        " did not complete the ledger; the job keeps the one that the queue "
                        "reported last"));
    }
    Finalize(now, job);
  }

  // If the queue is lost, wait for it without limit: it frees the data when it comes back.
  if (job.record.stage == Stage::kFreeing &&
      (!queue_may_know_job || (queue_there && spent() >= kFreeTime))) {
    EnterStage(now, job, Stage::kOver);
  }
}

// The queue keeps the job's data under the phase HOLD. What a worker still holds there that has not
// left in time is taken from it, so that others can go on with it after the pause.
void Controller::FinishPause(Instant now, Job& job) {
  for (const Worker& worker : Callers(job)) {
    if (!job.assign.opened || HasLeft(job, worker)) continue;
    out_.releases.push_back({job.record.id, job.assign.queue, AddressOf(job.assign.queue),
                             worker.id, worker.incarnation});
  }
  job.assign.workers.clear();
  job.assign.trainers_complete = false;
  // Revision 0: the queue has never heard of the job.
  if (job.assign.revision > 0) ++job.assign.revision;
  job.call_not_before = now.mono;

  job.record.stage = Stage::kNone;
  job.record.paused = now.wall;
  job.stage_durations.clear();
  SetState(now, job, JobState::kPaused, "",
           absl::StrCat("`sluice job resume ", job.record.name, "` goes on with step ",
                        job.record.step));
  staff_due_ = true;
}

// The final state and the result are stored in one transaction, before the queue is told to free
// the data.
void Controller::Finalize(Instant now, Job& job) {
  // The step that was under way when limits.wall passed has been counted by now.
  if (job.record.target == JobState::kSucceeded && job.record.step == 0) {
    job.record.target = JobState::kFailed;
    job.record.code = kNoStepCode;
    job.record.message = NoStepText(job.record.name, job.record.message);
  }

  if (job.running_since != absl::InfiniteDuration()) {
    const bool closing = job.record.stage == Stage::kClosing;
    const std::string took =
        EndText(job, closing ? now.mono - job.stage_since : absl::ZeroDuration());
    Emit(now, job, Severity::kInfo, "controller", "", "ended", took);
    if (job.record.message.starts_with(kWallEnd)) absl::StrAppend(&job.record.message, "; ", took);
  }

  job.record.ended = now.wall;
  const double seconds = job.running_since == absl::InfiniteDuration()
                             ? 0
                             : absl::ToDoubleSeconds(now.mono - job.running_since);
  out_.ops.push_back(
      {JobKey(job.record.id, "result"), Encode(ResultOf(job, job.record.target, seconds))});
  SetState(now, job, job.record.target, job.record.code, job.record.message);
  job.assign.workers.clear();
  EnterStage(now, job, Stage::kFreeing);
}

void Controller::OnSetJobAnswer(Instant now, const SetJobCall& call,
                                const absl::StatusOr<SetJobAnswer>& answer) {
  const auto it = jobs_.find(call.job);
  if (it == jobs_.end() || active_.count(call.job) == 0) return;
  Job& job = it->second;
  job.call_in_flight = false;
  const Daemon* queue = fleet_.Find(call.queue);

  // The answer is that of an earlier queue process, or of the queue that the job had before it was
  // retried; CollectSetJobs() asks the present one.
  if (queue == nullptr || queue->record.incarnation != call.queue_incarnation ||
      call.queue != job.assign.queue)
    return;

  const bool closing = call.phase == QueuePhase::kClosed && job.record.stage == Stage::kClosing;
  if (!answer.ok()) {
    job.call_not_before = now.mono + absl::Milliseconds(500);
    const absl::Status& status = answer.status();
    if (ReasonOf(status) == "LOST_RACE") {
      // Our store was restored from an older copy: the queue knows a higher revision. Jump past it.
      uint64_t current = 0;
      if (!absl::SimpleAtoi(DetailOf(status).current, &current)) current = job.assign.revision;
      job.assign.revision = std::max(job.assign.revision, current) + 1;
      return MarkChanged(job);
    }

    const bool transient = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
                           absl::IsResourceExhausted(status) || absl::IsAborted(status) ||
                           // By this controller, which shuts down: its successor calls again.
                           absl::IsCancelled(status);
    if (transient) {
      job.queue_refusal = StatusText(status);
      return;
    }

    if (job.live()) {
      Fail(now, job, "SLUICE-CTL-0016",
           absl::StrCat("queue ", call.queue, " refuses the job: ", StatusText(status)));
    } else if (closing) {
      Finalize(now, job);
    } else if (call.phase == QueuePhase::kFreed) {
      EnterStage(now, job, Stage::kOver);
    } else {
      job.acked_revision = std::max(job.acked_revision, call.revision);
    }
    return;
  }

  job.queue_refusal.clear();
  // From here on the queue has accepted the call. `new_process` is true if a new process of the
  // queue has done so for the first time.
  const bool new_process =
      job.assign.queue_incarnation != 0 && job.assign.queue_incarnation != call.queue_incarnation;

  job.acked_revision = std::max(job.acked_revision, call.revision);
  job.assign.opened = true;
  job.assign.queue_incarnation = call.queue_incarnation;
  job.assign.queue_lost_job = !answer->restored && (new_process || job.assign.queue_lost_job);
  if (!job.assign.queue_lost_job) job.record.ledger = answer->ledger;
  MarkChanged(job);

  if (new_process && job.live()) OnQueueBack(now, job, call, *answer);

  if (closing) {
    job.record.ledger_final = !job.assign.queue_lost_job;
    if (job.assign.queue_lost_job) {
      Emit(now, job, Severity::kWarning, "controller", "", "ledger",
           absl::StrCat("queue ", call.queue,
                        " has lost the job; the job keeps the ledger that the queue reported "
                        "last"));
    }
    Finalize(now, job);
  } else if (call.phase == QueuePhase::kFreed && job.record.stage == Stage::kFreeing) {
    EnterStage(now, job, Stage::kOver);
  }
}

// A new process of the queue has taken the job up. If it has lost the job's data, a new trainer
// group is formed: the trainers go back to their last checkpoint and give the queue the cursor
// stored there.
void Controller::OnQueueBack(Instant now, Job& job, const SetJobCall& call,
                             const SetJobAnswer& answer) {
  const std::string queue = absl::StrCat("queue ", job.assign.queue);
  if (answer.restored) {
    return Emit(now, job, Severity::kInfo, "queue", job.assign.queue, "queue_back",
                absl::StrCat(queue, " goes on from its log"));
  }

  // A trainer group that was formed after the call, or that has not trained yet, calls Restore
  // anyway.
  const bool trained = job.record.running_since != absl::InfiniteFuture() &&
                       job.assign.trainers_complete &&
                       call.trainer_incarnation == job.assign.trainer_incarnation;

  const std::string from = job.record.checkpoint.empty()
                               ? "the model, as there is no checkpoint yet"
                               : job.record.checkpoint;
  Emit(now, job, Severity::kWarning, "queue", job.assign.queue, "queue_lost_job",
       absl::StrCat(queue, " has lost the job",
                    trained ? absl::StrCat("; a new trainer group goes on from ", from) : ""));
  if (!trained) return;
  job.assign.trainers_complete = false;
  staff_due_ = true;
}

void Controller::CountRestart(Instant now, Job& job, Role role, const std::string& cause) {
  const std::string name(RoleName(role));
  ++job.record.restarts[name];
  std::vector<int64_t>& recent = job.record.restarted[name];
  const int64_t seconds = absl::ToUnixSeconds(now.wall);
  recent.erase(std::remove_if(recent.begin(), recent.end(),
                              [&](int64_t at) { return at <= seconds - 3600; }),
               recent.end());
  recent.push_back(seconds);

  // A role with many daemons restarts more often, so the limit grows with their number.
  const int daemons = role == Role::kQueue ? 1 : std::max(1, job.record.needs.of(role).max);
  const int limit = job.record.needs.restarts_per_hour * daemons;
  if (job.live() && static_cast<int>(recent.size()) > limit) {
    Fail(now, job, "SLUICE-CTL-0017",
         absl::StrCat("there were ", recent.size(), " restarts of the ", name,
                      " within an hour, and the limit is ", limit, " (limits.restarts_per_hour is ",
                      job.record.needs.restarts_per_hour, " for each of ", daemons,
                      "); the cause of the last one: ", cause, "; see that daemon's log"));
  }
}

}  // namespace sluice::controller
