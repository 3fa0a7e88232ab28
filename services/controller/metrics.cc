#include "services/controller/metrics.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace sluice::controller {
namespace {

// The series of an ended job are kept for as long as the queue keeps its own, so that a scrape
// still sees how the job ended.
constexpr absl::Duration kSeriesLifetime = absl::Minutes(10);
constexpr JobState kStates[] = {JobState::kWaiting,    JobState::kStarting,  JobState::kRunning,
                                JobState::kRecovering, JobState::kFinishing, JobState::kSucceeded,
                                JobState::kCancelling, JobState::kCancelled, JobState::kFailed,
                                JobState::kPausing,    JobState::kPaused};

// A job may name any pool, so the number of these series is limited: three roles in each of 32
// pools. What further pools want counts for the pool `other`.
constexpr size_t kMaxWanted = 32 * 3;

// For how long a lost daemon is missed.
constexpr absl::Duration kMissed = absl::Hours(1);

// Whether nobody waits for the daemon to come back. Pods that are replaced come back under other
// names, so the old ones must not count as lost for ever.
bool HasLeft(const Daemon& daemon, absl::Duration now) {
  return !daemon.present() &&
         (daemon.left() || !daemon.was_lost || now - daemon.last_heard >= kMissed);
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

double MaxStaleness(const Job& job) {
  int64_t max = 0;
  if (job.steps.empty()) return 0;
  for (const auto& [staleness, tokens] : job.steps.rbegin()->second.staleness) {
    int64_t value = 0;
    if (tokens > 0 && absl::SimpleAtoi(staleness, &value)) max = std::max(max, value);
  }
  return static_cast<double>(max);
}

}  // namespace

Metrics::Metrics(metrics::Registry* registry) : registry_(registry) {
  registry_->AddGauge("sluice_controller_leader", "1 if this controller leads.").Set(1);
  // Prometheus cannot tell how much a series has grown that begins with its first event.
  for (const char* role : {"queue", "trainer"}) RecoveryTime(role);
  for (const Role role : {Role::kTrainer, Role::kRollout, Role::kReward})
    wanted_[{kDefaultPool, role}] = {0, 0};
}

metrics::Histogram Metrics::RecoveryTime(const char* role) {
  return registry_->AddHistogram("sluice_controller_recovery_duration_seconds",
                                 "Time from RECOVERING to RUNNING.", metrics::LongSeconds(),
                                 {{"role", role}});
}

void Metrics::RecordTransaction(const char* outcome, absl::Duration took) {
  registry_
      ->AddHistogram("sluice_controller_store_op_duration_seconds",
                     "Time of calls of the job store.", metrics::RpcSeconds(),
                     {{"op", "txn"}, {"outcome", outcome}})
      .Observe(absl::ToDoubleSeconds(took));
}

Metrics::JobGauges& Metrics::GaugesOf(const Job& job) {
  const auto [it, created] = jobs_.try_emplace(job.record.id);
  if (!created) return it->second;
  JobGauges& gauges = it->second;
  gauges.series = registry_->Hold("job_id", job.record.name);
  const metrics::Labels labels = {{"job_id", job.record.name}};
  for (const JobState state : kStates) {
    metrics::Labels with_state = labels;
    with_state["state"] = absl::AsciiStrToLower(StateName(state));
    gauges.state[state] = registry_->AddGauge(
        "sluice_job_state", "1 for the state that the job is in, else 0.", with_state);
  }
  gauges.max_staleness =
      registry_->AddGauge("sluice_job_max_staleness_versions",
                          "Highest staleness of a token that the last step trained.", labels);
  gauges.stalled_since =
      registry_->AddGauge("sluice_job_stalled_since_timestamp_seconds",
                          "Unix time since when no step has ended; 0 while steps advance.", labels);
  gauges.last_step = registry_->AddGauge("sluice_job_last_step_timestamp_seconds",
                                         "Unix time at which the last step ended, or at which the "
                                         "job began to start, if that is later.",
                                         labels);
  gauges.step_duration = registry_->AddGauge("sluice_job_step_duration_seconds",
                                             "Median duration of the last 20 steps.", labels);
  return gauges;
}

void Metrics::UpdateJob(const Job& job, Instant now) {
  JobGauges& gauges = GaugesOf(job);
  if (gauges.over) return;
  gauges.over = job.record.stage == Stage::kOver;
  for (const JobState state : kStates) gauges.state[state].Set(state == job.record.state ? 1 : 0);
  gauges.max_staleness.Set(MaxStaleness(job));
  const bool stalled =
      std::count(job.record.conditions.begin(), job.record.conditions.end(), "Stalled") > 0;
  const absl::Time advanced = now.wall - (now.mono - job.last_advance);
  gauges.stalled_since.Set(stalled ? absl::ToDoubleSeconds(advanced - absl::UnixEpoch()) : 0);
  // A job that waits for daemons takes no steps, and must not look as if it hung once it starts.
  if (job.record.state == JobState::kWaiting || job.record.state == JobState::kPaused)
    gauges.began = now.wall;
  if (gauges.began == absl::InfinitePast()) gauges.began = now.wall - (now.mono - job.state_since);
  const absl::Time last_step = std::max(job.last_step_at, gauges.began);
  gauges.last_step.Set(absl::ToDoubleSeconds(last_step - absl::UnixEpoch()));
  gauges.step_duration.Set(Median(job.step_seconds));

  if (job.record.state == JobState::kRecovering &&
      gauges.recovering_since == absl::InfiniteDuration()) {
    gauges.recovering_since = now.mono;
    // AdvanceLive() gives this code to a job whose queue does not serve.
    gauges.recovering_role = job.record.code == "SLUICE-CTL-0011" ? "queue" : "trainer";
  } else if (job.record.state == JobState::kRunning &&
             gauges.recovering_since != absl::InfiniteDuration()) {
    RecoveryTime(gauges.recovering_role)
        .Observe(absl::ToDoubleSeconds(now.mono - gauges.recovering_since));
    gauges.recovering_since = absl::InfiniteDuration();
  }
}

void Metrics::UpdateWanted(const WantedDaemons& wanted) {
  // A pool whose last daemon has gone wants nothing. Its series stay, because an autoscaler that
  // reads nothing leaves everything as it is.
  for (auto& [key, count] : wanted_) count = {0, 0};
  for (const auto& [key, count] : wanted) {
    const bool own = wanted_.contains(key) || wanted_.size() < kMaxWanted;
    const auto place = own ? key : std::pair(std::string("other"), key.second);
    Count& sum = wanted_.try_emplace(place, Count{0, 0}).first->second;
    sum = {sum.min + count.min, sum.max + count.max};
  }
  for (const auto& [key, count] : wanted_) {
    const auto set = [&, pool = key.first, role = key.second](const char* bound, int value) {
      registry_
          ->AddGauge("sluice_controller_wanted_daemons",
                     "Daemons that the jobs can use now. min: with so many all jobs go on, and "
                     "those start that lack nothing else. max: more would have no work.",
                     {{"bound", bound}, {"pool", pool}, {"role", std::string(RoleName(role))}})
          .Set(value);
    };
    set("min", count.min);
    set("max", count.max);
  }
}

void Metrics::Update(const Controller& core, Instant now) {
  std::map<std::pair<Role, Liveness>, int> daemons;
  for (const Role role : kRoles) {
    for (const Liveness liveness : {Liveness::kLive, Liveness::kSuspect, Liveness::kLost})
      daemons[{role, liveness}] = 0;
  }
  for (const auto& [id, daemon] : core.fleet().daemons())
    if (!HasLeft(daemon, now.mono)) ++daemons[{daemon.record.role, daemon.liveness}];

  for (const auto& [key, count] : daemons) {
    registry_
        ->AddGauge("sluice_controller_daemons",
                   "Daemons by role and state. One that has left, or was lost an hour ago, does "
                   "not count.",
                   {{"role", std::string(RoleName(key.first))},
                    {"state", std::string(LivenessName(key.second))}})
        .Set(count);
  }

  UpdateWanted(core.wanted());

  for (const auto& [id, job] : core.jobs()) {
    // A job that was already over when this controller started has no series. The series of an
    // ended job end after kSeriesLifetime. Two jobs of one name would share their series, so only
    // the newest has them.
    const bool shown = jobs_.count(id) > 0;
    if (!shown && job.record.stage == Stage::kOver) continue;
    const bool newest = *core.Find(job.record.name) == &job;
    const bool over =
        shown && IsFinal(job.record.state) && now.mono - job.state_since >= kSeriesLifetime;
    if (newest && !over) UpdateJob(job, now);
    else jobs_.erase(id);
  }
}

}  // namespace sluice::controller
