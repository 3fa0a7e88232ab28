#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/rl/version.h"

// The types that the whole controller uses. Ids and digests are lower-case hex in the core; the
// services translate them to and from the bytes of the wire.
namespace sluice::controller {

enum class Role { kQueue, kRollout, kReward, kTrainer };
inline constexpr Role kRoles[] = {Role::kQueue, Role::kRollout, Role::kReward, Role::kTrainer};
absl::string_view RoleName(Role role);  // "queue", "rollout", "reward", "trainer".

// Formats a duration for people, cut to whole seconds, or to tenths of a second below one second.
std::string DurationText(absl::Duration duration);

// A job goes WAITING -> STARTING -> RUNNING <-> RECOVERING, then FINISHING or CANCELLING, then to a
// final state. A job that fails passes through FINISHING too: its daemons leave and the queue
// completes the ledger before the state is FAILED. A paused job goes through PAUSING to PAUSED, and
// back to WAITING when it is resumed. Records store the numbers, so a new state comes last.
enum class JobState {
  kWaiting,   // Not enough daemons are free for the job.
  kStarting,  // Daemons are assigned, but not all of them are ready.
  kRunning,
  kRecovering,  // No step can be trained: a trainer or the queue is missing.
  kFinishing,
  kSucceeded,
  kCancelling,
  kCancelled,
  kFailed,
  kPausing,  // The trainer writes a checkpoint, and the daemons leave.
  kPaused,   // It has no daemons but its queue, which keeps the data.
};
absl::string_view StateName(JobState state);  // "WAITING", and so on.
bool IsFinal(JobState state);

// One moment on both clocks. `mono` measures durations within this process; `wall` is what is
// stored, as it keeps its meaning after a restart.
struct Instant {
  absl::Time wall;
  absl::Duration mono;
};

enum class Severity { kInfo = 1, kWarning = 2, kError = 3, kAlarm = 4 };

struct Event {
  uint64_t seq = 0;  // Number of the event within its job, from 1.
  absl::Time at;
  int64_t incarnation = 0;  // Incarnation of the job's trainer group at the time.
  Severity severity = Severity::kInfo;
  // Role of the daemon that raised the event; "controller" for the controller's own events.
  std::string role;
  std::string daemon;
  std::string code;
  std::string message;
  uint32_t count = 1;
};

// A trainer's report of step k, which produced `version`.
struct StepReport {
  int64_t k = 0;
  PolicyVersion version;
  absl::Time at;
  std::map<std::string, double> values;
  // Number of trained tokens by their staleness. The key is a number of versions, in decimal.
  std::map<std::string, int64_t> staleness;

  // Returns the value of this name, or nothing if the trainer did not report it or it is not
  // finite.
  std::optional<double> Find(const std::string& name) const;
};

// The queue's account of a job, with the fields of common.v1.Ledger. The counts are numbers of
// trajectories unless the name says tokens. It always holds that
// accepted = durable + applied + live + sum(dropped).
struct Ledger {
  int64_t accepted = 0, durable = 0, applied = 0, live = 0;
  std::map<std::string, int64_t> dropped;
  int64_t tokens_generated = 0, tokens_trained = 0, tokens_masked = 0;
  int64_t durable_version = 0;
  std::string hash;
  uint64_t event = 0;
};

// Mean reward and loss over the steps first_step to last_step; see job.v1.CurvePoint.
struct CurvePoint {
  int64_t first_step = 0, last_step = 0;
  std::optional<double> reward, loss;  // Unset if none of these steps reported it.
};

// Summary of the evaluations that ran beside training, as the trainer reported it last; see
// job.v1.EvalSummary.
struct EvalSummary {
  // Number of evaluated versions. If it is 0, the other fields have no meaning.
  int64_t versions = 0;
  double first = 0, last = 0, best = 0;
  int64_t best_version = 0;
  std::string best_checkpoint;
  bool operator==(const EvalSummary&) const = default;
};

// The result of a job; see job.v1.JobResult.
struct Result {
  std::string job, state;
  int64_t steps = 0;
  double seconds = 0;  // From the first RUNNING to the end.
  // Unset if nothing was scored, as in supervised training.
  std::optional<double> reward_first, reward_last;
  int64_t tokens_generated = 0, tokens_trained = 0;
  int64_t staleness_max = 0;
  std::map<std::string, int64_t> staleness_histogram;
  Ledger ledger;
  std::map<std::string, int64_t> restarts;
  std::string checkpoint;
  std::vector<CurvePoint> curve;
  std::optional<CurvePoint> best, worst;
  std::vector<std::string> warnings;  // One sentence each.
  EvalSummary eval;
};

// How many daemons of a role a job uses: at least `min`, and up to `max` if more are free.
struct Count {
  int min = 1;
  int max = 1;
};

// The pool of jobs and daemons that name no other.
inline constexpr char kDefaultPool[] = "default";

// The most daemons that all jobs of a submitter together may have. Unset: no limit.
struct DaemonQuota {
  std::optional<int> trainers, rollouts;
};

// The part of a job's spec that the core uses. The durations are those of the spec's `limits`.
struct Needs {
  int priority = 0;
  std::string pool{kDefaultPool};
  Count trainers, rollouts, rewards;
  absl::Duration wall = absl::InfiniteDuration();
  absl::Duration start = absl::Seconds(240);
  absl::Duration stall_warn = absl::Seconds(60);
  absl::Duration stall_fail = absl::Minutes(30);
  // Limit for each role, multiplied by the number of daemons of that role that the job may have.
  int restarts_per_hour = 5;

  const Count& of(Role role) const;
};

// A daemon that works for a job. `incarnation` is that of the daemon itself, also for a trainer
// (trainers call under the trainer group's incarnation, which is in AssignRecord).
struct Worker {
  std::string id;
  Role role = Role::kRollout;
  int64_t incarnation = 0;
  // It is to hand over its work and leave; the job goes on without it.
  bool leaving = false;
  bool operator==(const Worker&) const = default;
};

}  // namespace sluice::controller
