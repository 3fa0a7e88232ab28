#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "services/controller/core/learning.h"
#include "services/controller/core/types.h"

namespace sluice::controller {

// The phase that SetJob asks of the queue; the numbers are those of queue.v1.Phase.
enum class QueuePhase { kOpen = 1, kHold = 2, kClosed = 3, kFreed = 4 };

// How far the end of a job has come, or its pause, which has the first two stages alone. A stage
// ends when what it names has happened, or when its time limit has passed.
enum class Stage {
  kNone,          // The job is not ending or pausing.
  kStopTrainers,  // The trainers write a last checkpoint and leave; the queue admits nothing more.
  kStopAll,       // All other workers leave too.
  kClosing,       // The queue drops what is left of the job and reports the final ledger.
  kFreeing,       // The final state is stored; the queue may delete the job's data.
  kOver,
};

// Sums over the steps whose reports were deleted by Controller::ThinSteps().
struct FoldedSteps {
  double tokens = 0;                         // Trained tokens.
  std::map<std::string, int64_t> staleness;  // Trained tokens by staleness.
};

// A trainer group, and the step reports that came from it.
struct TrainerGroup {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  int64_t incarnation = 0;
  std::vector<std::string> trainers;  // Daemon ids.
  // The first step that it trains: reports of earlier groups about this step and later ones do not
  // count. kNone until it has said so.
  int64_t first_step = kNone;
  int64_t reported_k = -1;  // The newest step that it reported; -1 if there is none.
};
inline constexpr size_t kGroupsKept = 16;
// Returns the first step that a group later than `incarnation` has trained again; kNone if there is
// none.
int64_t FirstStepAfter(const std::vector<TrainerGroup>& groups, int64_t incarnation);

// The record that is stored at jobs/ID/status: the whole state of a job except its spec and its
// assignment.
struct JobRecord {
  std::string id;  // 32 hex digits.
  std::string name;
  std::string hash;  // SHA-256 of the job file's text, its folder and the --set options. Hex.
  // Id of the Submit call that made the job. Hex; empty if that call had none.
  std::string request;
  // Name of the person who submitted it. Empty without certificates.
  std::string owner;
  bool limited = false;  // The owner is a submitter, whom the operator's quotas limit.
  int64_t order = 0;     // Position of its Submit among all jobs, from 0.
  absl::Time created;
  Needs needs;

  JobState state = JobState::kWaiting;
  std::string code, message;                  // Why it is in this state.
  absl::Time since = absl::InfiniteFuture();  // When it came into this state.
  std::vector<std::string> conditions;
  absl::Time running_since = absl::InfiniteFuture();  // Time of the first RUNNING.
  absl::Time ended = absl::InfiniteFuture();
  absl::Time paused = absl::InfiniteFuture();  // Since when it is PAUSED.
  // The incarnation of the trainer group that the last retry gave up; -1 if there was no retry.
  int64_t retried = -1;

  // The final state that the end leads to, or kPaused; meaningless while stage is kNone.
  JobState target = JobState::kWaiting;
  Stage stage = Stage::kNone;
  bool stop_checkpoint = false;  // Trainers write a checkpoint before they leave.

  int64_t step = 0;                  // Number of trained steps.
  PolicyVersion version;             // The version that the trainer reported last.
  std::vector<TrainerGroup> groups;  // The newest kGroupsKept, by incarnation.
  uint64_t last_event = 0;
  std::map<std::string, int64_t> restarts;  // By role.
  // Times of the restarts within the last hour, by role, in Unix seconds.
  std::map<std::string, std::vector<int64_t>> restarted;
  Ledger ledger;  // The ledger that the queue reported last.
  bool ledger_final = false;
  std::string checkpoint;  // Path of the newest checkpoint.
  // The first step of the newest spell (learning.h) that an event has reported, by EventCode().
  // A trainer group that goes back to a checkpoint trains the same steps and may meet the same
  // spell again, which is not reported twice.
  std::map<std::string, int64_t> told_findings;
  FoldedSteps folded;
  EvalSummary eval;
};

// The record that is stored at assign/ID: who works for the job, and what the queue was told of it.
struct AssignRecord {
  // Incarnation of the trainers. Each new value is stored by compare-and-set before it is used.
  int64_t trainer_incarnation = 0;
  // All trainers of `trainer_incarnation` are there. If false, a new trainer group is formed once
  // enough trainers are assigned.
  bool trainers_complete = false;
  uint64_t revision = 0;  // Number of the newest SetJob; 0 if none was due yet.
  QueuePhase phase = QueuePhase::kOpen;
  bool opened = false;            // The queue has accepted a SetJob of this job.
  std::string queue;              // Id of the queue daemon. Empty while the job waits for daemons.
  int64_t queue_incarnation = 0;  // Incarnation of the queue process that accepted SetJob last.
  // That queue process has lost the job's data, and no trainer group has restored the job there
  // yet: until then its ledger says nothing.
  bool queue_lost_job = false;
  std::vector<Worker> workers;  // Sorted by id; without the queue.

  const Worker* Find(const std::string& id) const;
};

// The values of a step report from which the result is computed.
struct StepSummary {
  double reward_count = 0;  // Number of scored trajectories; `signal` has their mean reward.
  double tokens = 0;        // Trained tokens.
  std::optional<double> loss;
  std::map<std::string, int64_t> staleness;
  StepSignal signal;
};
StepSummary SummaryOf(const StepReport& step);

// A job in memory: its two stored records, and the state of this process.
struct Job {
  JobRecord record;
  AssignRecord assign;
  // The serialised job.v1.JobSpec, opaque to the core. Empty while the job is over.
  std::string spec;
  // The steps whose reports are stored, by k. A trainer group that goes back to a checkpoint
  // removes the later ones, so they form one line of training. Empty while the job is over.
  std::map<int64_t, StepSummary> steps;
  // For each time that this process dropped steps, or added one that is not the last: the first of
  // them. A watcher goes back there.
  std::vector<int64_t> rewritten_from;
  // The first of the steps that were reported late and are not in `learning` yet.
  std::optional<int64_t> late_step;
  // Has been given all of `steps`, in order. It also remembers the steps that ThinSteps() removed,
  // until OnStepsRewritten() or a restart of the controller builds it anew from `steps`.
  LearningWatch learning;

  // The rest is not stored. All times are on the monotonic clock.
  absl::Duration state_since, stage_since;
  absl::Duration running_since = absl::InfiniteDuration();
  // How long each finished stage of the end took.
  std::map<Stage, absl::Duration> stage_durations;
  absl::Duration last_advance;  // Time of the last step or change of state.
  // Time of the last step that was reported to this process.
  absl::Duration last_step = -absl::InfiniteDuration();
  // When the daemons were last asked what a stalled job waits for.
  absl::Duration diagnosis_asked = -absl::InfiniteDuration();
  // The daemons' answer in words. Empty if the job is not stalled, or nothing was answered yet.
  std::string diagnosis;
  // Newest revision that the present queue process has accepted, or refused for good.
  uint64_t acked_revision = 0;
  bool call_in_flight = false;  // A SetJob is under way; there is at most one at a time.
  // Of a waiting job: what would let it start, for people.
  std::string starts_when;
  std::string queue_refusal;  // Why the queue did not accept the last SetJob. Empty if it did.
  absl::Duration call_not_before = -absl::InfiniteDuration();  // Earliest time of the next SetJob.
  uint64_t changes = 1;                            // Rises with each change that a watcher may see.
  absl::Time last_step_at = absl::InfinitePast();  // By the trainer's clock.
  // Seconds between successive step reports: the last 20, newest last.
  std::vector<double> step_seconds;

  // Whether it runs, or waits for daemons.
  bool live() const {
    return !IsFinal(record.state) && record.stage == Stage::kNone &&
           record.state != JobState::kPaused;
  }
  bool started() const { return record.state != JobState::kWaiting; }
};

// The result's curve has at most this many points.
inline constexpr int64_t kCurvePoints = 60;
// Steps over which the first and last reward are averaged: enough to smooth the luck of one batch.
inline constexpr int kRewardSteps = 10;
// The result of a job that ends as `state` after `seconds` of running. reward_first and reward_last
// are means of the task reward (`reward_mean` and `reward_count` of the reports) over all scored
// trajectories of the first and of the last min(kRewardSteps, steps) steps.
Result ResultOf(const Job& job, JobState state, double seconds);

}  // namespace sluice::controller
