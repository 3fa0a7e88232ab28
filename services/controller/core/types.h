#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/rl/version.h"

// The controller's nouns. Ids and digests are lower-case hex here; the edges translate.
namespace sluice::controller {

enum class Role { kQueue, kRollout, kReward, kTrainer };
inline constexpr Role kRoles[] = {Role::kQueue, Role::kRollout, Role::kReward, Role::kTrainer};
absl::string_view RoleName(Role role);  // "queue", "rollout", "reward", "trainer".

// A duration for people: whole seconds, below one second whole tenths.
std::string Short(absl::Duration duration);

// WAITING -> STARTING -> RUNNING <-> RECOVERING; then FINISHING or CANCELLING, then a final state.
// A job that fails passes through FINISHING too, while its daemons leave and the queue closes its
// books.
enum class JobState {
  kWaiting,   // For daemons.
  kStarting,  // Daemons are assigned, not all ready.
  kRunning,
  kRecovering,  // No step can advance: a trainer or the queue is missing.
  kFinishing,
  kSucceeded,
  kCancelling,
  kCancelled,
  kFailed,
};
absl::string_view StateName(JobState state);  // "WAITING", ..
bool IsFinal(JobState state);

// One moment on both clocks: `mono` for what happens to processes that live, `wall` for what is
// stored.
struct Instant {
  absl::Time wall;
  absl::Duration mono;
};

enum class Severity { kInfo = 1, kWarning = 2, kError = 3, kAlarm = 4 };

struct Event {
  uint64_t seq = 0;  // Of the job, from 1.
  absl::Time at;
  int64_t incarnation = 0;  // Of the gang.
  Severity severity = Severity::kInfo;
  std::string role;  // Whose event; "controller" for its own.
  std::string daemon;
  std::string code;
  std::string message;
  uint32_t count = 1;
};

// What a trainer tells of step k, which made `version`.
struct StepReport {
  int64_t k = 0;
  PolicyVersion version;
  absl::Time at;
  std::map<std::string, double> values;
  std::map<std::string, int64_t> staleness;  // Trained tokens by staleness in versions.

  // Nothing: the trainer did not tell it, or it is not finite.
  std::optional<double> Find(const std::string& name) const;
};

// A job's books, in trajectories unless said: accepted = durable + applied + live + sum(dropped).
struct Ledger {
  int64_t accepted = 0, durable = 0, applied = 0, live = 0;
  std::map<std::string, int64_t> dropped;
  int64_t tokens_generated = 0, tokens_trained = 0, tokens_masked = 0;
  int64_t durable_version = 0;
  std::string hash;
  uint64_t event = 0;
};

// What the steps first_step .. last_step came to, as in job.CurvePoint.
struct CurvePoint {
  int64_t first_step = 0, last_step = 0;
  std::optional<double> reward, loss;  // None: no step of them told it.
};

// What the evaluations beside training came to, as the trainer told it last; see
// job.v1.EvalSummary.
struct EvalSummary {
  int64_t versions = 0;  // 0: none was evaluated.
  double first = 0, last = 0, best = 0;
  int64_t best_version = 0;
  std::string best_checkpoint;
  bool operator==(const EvalSummary&) const = default;
};

// What a job came to.
struct Result {
  std::string job, state;
  int64_t steps = 0;
  double seconds = 0;  // Wall time from RUNNING on.
  // None: nothing was scored, as in supervised training.
  std::optional<double> reward_first, reward_last;
  int64_t tokens_generated = 0, tokens_trained = 0;
  int64_t staleness_max = 0;
  std::map<std::string, int64_t> staleness_histogram;
  Ledger ledger;
  std::map<std::string, int64_t> restarts;
  std::string checkpoint;
  std::vector<CurvePoint> curve;
  std::optional<CurvePoint> best, worst;
  std::vector<std::string> warnings;  // A sentence each.
  EvalSummary eval;
};

// At least `min`, with surplus at most `max`.
struct Count {
  int min = 1;
  int max = 1;
};

// What the core needs to know of a job's spec.
struct Needs {
  int priority = 0;
  Count trainers, rollouts, rewards;
  absl::Duration wall = absl::InfiniteDuration();
  absl::Duration start = absl::Seconds(240);
  absl::Duration stall_warn = absl::Seconds(60);
  absl::Duration stall_fail = absl::Minutes(30);
  int restarts_per_hour = 5;  // Of each role, per daemon that the job may have of it.

  const Count& of(Role role) const;
};

// A daemon that works for a job. `incarnation` is the daemon's own, of trainers too.
struct Worker {
  std::string id;
  Role role = Role::kRollout;
  int64_t incarnation = 0;
  bool operator==(const Worker&) const = default;
};

}  // namespace sluice::controller
