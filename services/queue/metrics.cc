#include "services/queue/metrics.h"

#include "absl/strings/str_cat.h"

namespace sluice::queue {
namespace {
// Most values of a label that a job chooses; further values are summed as `other`.
constexpr size_t kLabelValues = 10;
constexpr const char* kParkedCalls[] = {"Admit", "LeaseTasks", "AcquireBatch"};
constexpr const char* kKeyedCalls[] = {"SetJob",         "Admit",   "Seal",         "Drop",
                                       "LeaseTasks",     "Release", "AcquireBatch", "Apply",
                                       "AdvanceVersion", "Durable", "Restore"};

double Number(auto value) { return static_cast<double>(value); }
}  // namespace

// Writes one job's numbers into its series. A series is made when it is first named.
class Metrics::Writer {
 public:
  Writer(metrics::Registry* registry, const std::string& job, Series* series)
      : registry_(registry), job_(job), series_(*series) {}

  void SetGauge(const char* name, const char* help, double value, const char* label = "",
                const std::string& of = "") {
    const auto [it, fresh] = series_.gauges.try_emplace(absl::StrCat(name, "/", of));
    if (fresh)
      it->second =
          registry_->AddGauge(absl::StrCat("sluice_queue_", name), help, Labels(label, of));
    it->second.Set(value);
  }
  void SetCounter(const char* name, const char* help, int64_t value, const char* label = "",
                  const std::string& of = "") {
    const auto [it, fresh] = series_.counters.try_emplace(absl::StrCat(name, "/", of));
    if (fresh)
      it->second.first =
          registry_->AddCounter(absl::StrCat("sluice_queue_", name), help, Labels(label, of));
    if (value > it->second.second) it->second.first.Add(Number(value - it->second.second));
    it->second.second = std::max(it->second.second, value);
  }
  void WriteStaleness(const char* where, const std::map<int64_t, int64_t>& counts) {
    const auto [it, fresh] = series_.staleness.try_emplace(where);
    if (fresh) {
      it->second = registry_->AddHistogram(
          "sluice_queue_staleness_versions",
          "Staleness of a trained trajectory's oldest trained token, gained until its seal "
          "(in_flight), from the seal to the cut (in_queue), and in total (at_cut).",
          metrics::Versions(), Labels("where", where));
    }
    for (const auto& [age, count] : counts) {
      int64_t& told = series_.observed[absl::StrCat(where, "/", age)];
      for (; told < count; ++told) it->second.Observe(Number(age));
    }
  }

  void WriteLedger(const Ledger& ledger, int64_t answers_saved) {
    SetCounter("accepted_total", "Trajectories granted for the first time.", ledger.accepted);
    SetCounter("durable_total", "Trajectories in durable checkpoints.", ledger.durable);
    for (const auto& [reason, count] : ledger.dropped)
      SetCounter("dropped_total", "Trajectories dropped.", count, "reason", reason);
    SetCounter("answers_saved_total",
               "Answers that were not sampled, because their group ended with its first wave "
               "(rollout.group.first_wave).",
               answers_saved);
    SetGauge("applied_trajectories", "Trajectories trained on and not yet durable.",
             Number(ledger.applied));
    SetGauge("live_trajectories", "Trajectories neither applied nor dropped.", Number(ledger.live));
    SetGauge("ledger_gap_trajectories",
             "accepted - durable - applied - live - dropped; it must be 0.", Number(ledger.gap()));
  }
  void WriteEvents(const Counters& counters) {
    SetLabelled("ledger_violations_total",
                "Broken rules: staleness refused at Apply, conflict of a second write.", "rule",
                {"staleness", "conflict"}, counters.violations);
    SetLabelled("fenced_calls_total", "Calls of older incarnations.", "role",
                {"rollout", "reward", "trainer"}, counters.fenced);
    SetLabelled("repeated_calls_total", "Calls recognised as repeats.", "call", kKeyedCalls,
                counters.repeats);
    SetLabelled("leases_expired_total", "Leases that ran out.", "kind",
                {"trajectory", "task", "batch"}, counters.leases_expired);
    SetLabelled("tokens_dropped_total", "Trainable tokens that no step trained.", "reason",
                {"masked", "stale", "filtered"}, counters.tokens_dropped);
  }
  void WriteContents(const StatsAnswer& stats) {
    for (const auto& [state, count] : stats.groups)
      SetGauge("groups", "Groups by state; filtered ones and quarantined prompts too.",
               Number(count), "state", state);
    for (const char* state : {"used", "overdue"})
      SetGauge("slots", "Slots by state: used, and overdue, of steps already cut.",
               Number(stats.slots.at(state)), "state", state);
    SetGauge("stored_bytes", "Payload held.", Number(stats.bytes.at("stored")));
    SetGauge("reserved_bytes", "Payload reserved, against the quota.",
             Number(stats.bytes.at("reserved")));
    for (const auto& [call, count] : stats.waiting)
      SetGauge("waiting_calls", "Calls parked now.", count, "call", call);
  }
  void WriteLengthBias(const Counters& counters) {
    std::array<LengthBin, 8> octiles;
    std::map<std::string, LengthBin> datasets;
    for (const auto& [source, bins] : counters.lengths) {
      const bool named =
          datasets.size() + 1 < kLabelValues || counters.lengths.size() <= kLabelValues;
      LengthBin& dataset = datasets[named ? source : "other"];
      for (size_t octile = 0; octile < bins.size(); ++octile) {
        dataset += bins[octile];
        octiles[octile] += bins[octile];
      }
    }

    for (size_t octile = 0; octile < octiles.size(); ++octile) {
      if (octiles[octile].sealed == 0) continue;
      SetGauge("acceptance_ratio",
               "Trained trajectories divided by sealed ones, by length in eighths of the longest "
               "allowed.",
               octiles[octile].acceptance(), "octile", absl::StrCat(octile));
    }
    for (const auto& [dataset, bin] : datasets) {
      if (bin.ratio())
        SetGauge("length_bias_ratio",
                 "Mean length of trained answers divided by that of sampled ones.", *bin.ratio(),
                 "dataset", dataset);
    }
  }

 private:
  metrics::Labels Labels(const char* label, const std::string& of) const {
    metrics::Labels labels = {{"job_id", job_}};
    if (label[0] != '\0') labels[label] = of;
    return labels;
  }
  // `known` are label values that exist from the start, at zero.
  void SetLabelled(const char* name, const char* help, const char* label,
                   absl::Span<const char* const> known,
                   const std::map<std::string, int64_t>& counts) {
    for (const char* value : known) SetCounter(name, help, 0, label, value);
    for (const auto& [value, count] : counts) SetCounter(name, help, count, label, value);
  }

  metrics::Registry* const registry_;
  const std::string& job_;
  Series& series_;
};

Metrics::Metrics(metrics::Registry* registry, Clock* clock, absl::Duration kept)
    : registry_(registry),
      clock_(clock),
      kept_(kept),
      syncs_(registry->AddHistogram("sluice_queue_log_fsync_duration_seconds",
                                    "Time of syncs of the jobs' logs.", metrics::FsyncSeconds())),
      recovery_(
          registry->AddGauge("sluice_queue_recovery_duration_seconds",
                             "Time of the last replay of a job's log; 0: none since the start.")) {}

void Metrics::ObserveSync(absl::Duration took) { syncs_.Observe(absl::ToDoubleSeconds(took)); }
void Metrics::ObserveRecovery(absl::Duration took) { recovery_.Set(absl::ToDoubleSeconds(took)); }

void Metrics::Add(const std::shared_ptr<JobRunner>& runner) {
  MutexLock lock(&mu_);
  const auto [it, fresh] = entries_.try_emplace(runner->name());
  // The name is used again, so the counters begin again with the new job.
  if (!fresh && it->second.runner != runner) {
    it->second = {};
    registry_->Remove("job_id", runner->name());
  }
  it->second.runner = runner;
  for (const char* call : kParkedCalls) WaitHistogram(runner->name(), it->second, call);
}

void Metrics::Remove(const std::shared_ptr<JobRunner>& runner) {
  MutexLock lock(&mu_);
  const auto it = entries_.find(runner->name());
  if (it == entries_.end() || it->second.runner != runner) return;
  Write(runner->name(), it->second);
  it->second.runner = nullptr;
  it->second.ended = std::min(it->second.ended, clock_->Monotonic());
}

metrics::Histogram& Metrics::WaitHistogram(const std::string& job, Entry& entry, const char* call) {
  const auto [it, fresh] = entry.series.waits.try_emplace(call);
  if (fresh) {
    it->second = registry_->AddHistogram("sluice_queue_wait_duration_seconds",
                                         "How long parked calls waited.", metrics::LongSeconds(),
                                         {{"job_id", job}, {"call", call}});
  }
  return it->second;
}

void Metrics::ObserveWait(const std::string& job, const char* call, absl::Duration wait) {
  MutexLock lock(&mu_);
  if (const auto it = entries_.find(job); it != entries_.end())
    WaitHistogram(job, it->second, call).Observe(absl::ToDoubleSeconds(wait));
}

void Metrics::Write(const std::string& job, Entry& entry) {
  const auto [stats, counters] = entry.runner->ReadJob(
      [](const Job& core, Instant) { return std::make_pair(core.Stats(), core.counters()); });
  Writer writer(registry_, job, &entry.series);
  writer.WriteLedger(stats.ledger, stats.answers_saved);
  writer.WriteEvents(counters);
  writer.WriteContents(stats);
  writer.WriteLengthBias(counters);
  writer.WriteStaleness("in_flight", counters.in_flight);
  writer.WriteStaleness("in_queue", counters.in_queue);
  writer.WriteStaleness("at_cut", counters.at_cut);
}

void Metrics::Update() {
  MutexLock lock(&mu_);
  const Instant now = clock_->Monotonic();
  for (auto it = entries_.begin(); it != entries_.end();) {
    auto& [job, entry] = *it;
    if (entry.runner != nullptr) {
      const Phase phase =
          entry.runner->ReadJob([](const Job& core, Instant) { return core.phase(); });
      entry.ended = phase < Phase::kClosed ? absl::InfiniteDuration() : std::min(entry.ended, now);
      if (now - entry.ended < kept_) Write(job, entry);
    }
    if (now - entry.ended < kept_) {
      ++it;
      continue;
    }
    registry_->Remove("job_id", job);
    entry.series = {};
    it = entry.runner == nullptr ? entries_.erase(it) : std::next(it);
  }
}

}  // namespace sluice::queue
