#include "services/queue/metrics.h"

#include "absl/strings/str_cat.h"

namespace sluice::queue {
namespace {
metrics::Labels LabelsOf(const std::string& job, const char* label, const std::string& of) {
  metrics::Labels labels = {{"job_id", job}};
  if (label[0] != '\0') labels[label] = of;
  return labels;
}
}  // namespace

Metrics::Metrics(metrics::Registry* registry) : registry_(registry) {}

void Metrics::Add(const std::shared_ptr<JobRunner>& runner) {
  MutexLock lock(&mu_);
  entries_[runner->name()] = {.runner = runner};
  UpdateOne(entries_[runner->name()]);
}

void Metrics::Remove(const std::shared_ptr<JobRunner>& runner) {
  MutexLock lock(&mu_);
  const auto it = entries_.find(runner->name());
  if (it != entries_.end() && it->second.runner == runner) entries_.erase(it);
}

void Metrics::ObserveWait(const std::string& job, const char* call, absl::Duration wait) {
  MutexLock lock(&mu_);
  const auto [it, fresh] = waits_.try_emplace({job, call});
  if (fresh) {
    it->second = registry_->AddHistogram("sluice_queue_wait_duration_seconds", "How long parked calls waited.", metrics::LongSeconds(),
                                         {{"job_id", job}, {"call", call}});
  }
  it->second.Observe(absl::ToDoubleSeconds(wait));
}

void Metrics::SetGauge(Entry& entry, const char* name, const char* help, double value, const char* label, const std::string& of) {
  const auto [it, fresh] = entry.series.gauges.try_emplace(absl::StrCat(name, "/", of));
  if (fresh) it->second = registry_->AddGauge(absl::StrCat("sluice_queue_", name), help, LabelsOf(entry.runner->name(), label, of));
  it->second.Set(value);
}

void Metrics::RaiseCounter(Entry& entry, const char* name, const char* help, int64_t value, const char* label, const std::string& of) {
  const auto [it, fresh] = entry.series.counters.try_emplace(absl::StrCat(name, "/", of));
  if (fresh) it->second.first = registry_->AddCounter(absl::StrCat("sluice_queue_", name), help, LabelsOf(entry.runner->name(), label, of));
  if (value > it->second.second) it->second.first.Add(static_cast<double>(value - it->second.second));
  it->second.second = value;
}

void Metrics::ObserveCounts(Entry& entry, const char* where, const std::map<int64_t, int64_t>& counts) {
  const auto [it, fresh] = entry.series.histograms.try_emplace(where);
  if (fresh) {
    it->second = registry_->AddHistogram("sluice_queue_staleness_versions", "Oldest trained token of a trajectory, in versions.", metrics::Versions(),
                                         LabelsOf(entry.runner->name(), "where", where));
  }
  for (const auto& [age, count] : counts) {
    int64_t& told = entry.series.observed[absl::StrCat(where, "/", age)];
    for (; told < count; ++told) it->second.Observe(static_cast<double>(age));
  }
}

void Metrics::Update() {
  MutexLock lock(&mu_);
  for (auto& [name, entry] : entries_) UpdateOne(entry);
}

void Metrics::UpdateOne(Entry& entry) {
  const auto [stats, counters] = entry.runner->Look([](const Job& job, Instant) { return std::make_pair(job.Stats(), job.counters()); });
  const Ledger& ledger = stats.ledger;
  RaiseCounter(entry, "accepted_total", "Trajectories granted for the first time.", ledger.accepted);
  RaiseCounter(entry, "durable_total", "Trajectories in durable checkpoints.", ledger.durable);
  for (const auto& [reason, count] : ledger.dropped) {
    if (count > 0) RaiseCounter(entry, "dropped_total", "Trajectories dropped.", count, "reason", reason);
  }
  SetGauge(entry, "applied_trajectories", "Trained on, not yet durable.", static_cast<double>(ledger.applied));
  SetGauge(entry, "live_trajectories", "Neither applied nor dropped.", static_cast<double>(ledger.live));
  SetGauge(entry, "ledger_gap_trajectories", "accepted - durable - applied - live - dropped; 0.", static_cast<double>(ledger.gap()));
  for (const auto& [rule, count] : counters.violations) RaiseCounter(entry, "ledger_violations_total", "Broken rules.", count, "rule", rule);
  for (const auto& [role, count] : counters.fenced) RaiseCounter(entry, "fenced_calls_total", "Calls of older incarnations.", count, "role", role);
  for (const auto& [call, count] : counters.repeats) RaiseCounter(entry, "repeated_calls_total", "Calls known as repeats.", count, "call", call);
  for (const auto& [kind, count] : counters.leases_expired) RaiseCounter(entry, "leases_expired_total", "Leases that ran out.", count, "kind", kind);
  for (const auto& [reason, count] : counters.tokens_dropped) RaiseCounter(entry, "tokens_dropped_total", "Trainable tokens not trained.", count, "reason", reason);
  for (const auto& [state, count] : stats.groups) SetGauge(entry, "groups", "Groups by state.", static_cast<double>(count), "state", state);
  SetGauge(entry, "slots", "Slots by state.", static_cast<double>(stats.slots.at("used")), "state", "used");
  SetGauge(entry, "slots", "Slots by state.", static_cast<double>(stats.slots.at("overdue")), "state", "overdue");
  SetGauge(entry, "stored_bytes", "Payload held.", static_cast<double>(stats.bytes.at("stored")));
  SetGauge(entry, "reserved_bytes", "Payload reserved.", static_cast<double>(stats.bytes.at("reserved")));
  for (const auto& [call, count] : stats.waiting) SetGauge(entry, "waiting_calls", "Calls parked now.", count, "call", call);
  for (const auto& [source, ratio] : stats.length_ratio) SetGauge(entry, "length_bias_ratio", "Trained over generated mean length.", ratio, "dataset", source);
  for (size_t octile = 0; octile < counters.sealed_octile.size(); ++octile) {
    const int64_t sealed = counters.sealed_octile[octile];
    if (sealed == 0) continue;
    SetGauge(entry, "acceptance_ratio", "Trained over sealed trajectories, by length in eighths of the longest allowed.",
             static_cast<double>(counters.trained_octile[octile]) / static_cast<double>(sealed), "octile", absl::StrCat(octile));
  }
  ObserveCounts(entry, "in_flight", counters.in_flight);
  ObserveCounts(entry, "in_queue", counters.in_queue);
  ObserveCounts(entry, "at_cut", counters.at_cut);
}

}  // namespace sluice::queue
