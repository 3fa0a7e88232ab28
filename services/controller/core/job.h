#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "services/controller/core/learning.h"
#include "services/controller/core/types.h"

namespace sluice::controller {

// Phases of the queue's job, as SetJob says them.
enum class QueuePhase { kOpen = 1, kHold = 2, kClosed = 3, kFreed = 4 };

// How far the end of a job has come. Each stage ends when what it names has happened, or its time
// is up.
enum class Stage {
  kNone,          // The job is not ending.
  kStopTrainers,  // Trainers leave, with a last checkpoint; the queue admits nothing more.
  kStopAll,       // The others leave too.
  kClosing,       // The queue closes the books and tells the final ledger.
  kFreeing,       // The state is final and stored; the queue may drop the job's data.
  kOver,
};

// Sums over the steps whose reports are no longer kept (Controller::ThinSteps).
struct FoldedSteps {
  double tokens = 0;  // Trained.
  std::map<std::string, int64_t> staleness;
};

// What is stored at jobs/ID/status, all that the job's life needs but its spec.
struct JobRecord {
  std::string id;  // 32 hex digits.
  std::string name;
  std::string hash;     // Of what the user wrote. Hex.
  std::string request;  // Of the submission that made it. Hex; empty: it had none.
  int64_t order = 0;    // Of its Submit among all.
  absl::Time created;
  Needs needs;

  JobState state = JobState::kWaiting;
  std::string code, message;  // Why it is in this state.
  std::vector<std::string> conditions;
  absl::Time running_since = absl::InfiniteFuture();  // First RUNNING.
  absl::Time ended = absl::InfiniteFuture();

  JobState target = JobState::kWaiting;  // Of the end, once stage is set.
  Stage stage = Stage::kNone;
  bool stop_checkpoint = false;  // Trainers write one before they leave.

  int64_t step = 0;                  // Steps done.
  PolicyVersion version;             // As the trainer told it last.
  int64_t reported_incarnation = 0;  // Gang and k of the newest step report; -1: none.
  int64_t reported_k = -1;
  uint64_t last_event = 0;
  std::map<std::string, int64_t> restarts;  // By role.
  // Within the last hour, unix seconds, by role.
  std::map<std::string, std::vector<int64_t>> restarted;
  Ledger ledger;  // The last that the queue told.
  bool ledger_final = false;
  std::string checkpoint;  // Path of the newest.
  // By EventCode of a finding: first step of the newest spell that an event told of. A gang that
  // trains steps again meets the same spell again, which is then not news.
  std::map<std::string, int64_t> told_findings;
  FoldedSteps folded;
  EvalSummary eval;
};

// What is stored at assign/ID.
struct AssignRecord {
  int64_t gang = 0;         // Incarnation of the trainers; drawn by compare-and-set.
  bool gang_whole = false;  // Its trainers are there; false: the next ones form a new gang.
  uint64_t revision = 0;    // Of SetJob; 0: never sent.
  QueuePhase phase = QueuePhase::kOpen;
  bool opened = false;            // The queue has answered SetJob.
  std::string queue;              // Daemon id.
  int64_t queue_incarnation = 0;  // Of the process that answered SetJob last.
  // It began with nothing of the job, and no gang has restored it yet: its ledger says nothing.
  bool queue_lost_job = false;
  std::vector<Worker> workers;  // By id.

  const Worker* Find(const std::string& id) const;
};

// Of a step, what the result is made of.
struct StepSummary {
  double reward_count = 0;  // Scored members; their mean reward is in `signal`.
  double tokens = 0;        // Trained.
  std::optional<double> loss;
  std::map<std::string, int64_t> staleness;
  StepSignal signal;
};
StepSummary SummaryOf(const StepReport& step);

// A job in memory.
struct Job {
  JobRecord record;
  AssignRecord assign;
  std::string spec;  // Opaque here. Empty once the job is over.
  // By k, along the lineage: those whose reports are stored. Empty once over.
  std::map<int64_t, StepSummary> steps;
  LearningWatch learning;  // Has seen `steps`, in their order, and those that were folded.

  // Of this process; all times are monotonic.
  absl::Duration state_since, stage_since;
  absl::Duration running_since = absl::InfiniteDuration();
  std::map<Stage, absl::Duration> stage_took;  // How long the stages of the end took that are over.
  absl::Duration moved;                        // Last step, or change of state.
  // When it was asked last what a stall waits for.
  absl::Duration diagnosed = -absl::InfiniteDuration();
  std::string diagnosis;        // The answer; empty: not stalled, or not answered yet.
  uint64_t acked_revision = 0;  // SetJob that the present queue process has answered.
  bool call_in_flight = false;
  std::string queue_refusal;  // Why the queue did not take the last SetJob. Empty: it did.
  absl::Duration call_not_before = -absl::InfiniteDuration();
  uint64_t changes = 1;                            // Rises with each change that a watcher may see.
  absl::Time last_step_at = absl::InfinitePast();  // By the trainer's clock.
  std::vector<double> step_seconds;                // Between reports, the last 20, newest last.

  bool live() const { return !IsFinal(record.state) && record.stage == Stage::kNone; }
  bool started() const { return record.state != JobState::kWaiting; }
};

// The result of a job that ends as `state`. reward_first and _last: means of the task reward
// (reports' values `reward_mean`, `reward_count`) over all scored members of the first and the last
// min(10, steps) steps. curve: at most kCurvePoints.
inline constexpr int64_t kCurvePoints = 60;
inline constexpr int kRewardSteps = 10;  // Enough to smooth one batch's luck, few beside a run.
Result ResultOf(const Job& job, JobState state, double seconds);

}  // namespace sluice::controller
