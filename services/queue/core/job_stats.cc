#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/queue/core/job.h"

// What Watch and Stats answer.
namespace sluice::queue {
namespace {
// Adds acceptance and length ratio of each source, and in it of each eighth of the longest answer
// that the job allows.
void AddLengths(const Counters& counters, StatsAnswer& stats) {
  const auto add = [&](const std::string& name, const LengthBin& bin) {
    if (bin.sealed == 0) return;
    stats.acceptance[name] = bin.acceptance();
    if (const std::optional<double> ratio = bin.ratio()) stats.length_ratio[name] = *ratio;
  };
  for (const auto& [source, bins] : counters.lengths) {
    LengthBin all;
    for (size_t eighth = 0; eighth < bins.size(); ++eighth) {
      add(absl::StrCat(source, "/", eighth), bins[eighth]);
      all += bins[eighth];
    }
    add(source, all);
  }
}
}  // namespace

WatchState Job::watch() const {
  WatchState state{.queue_incarnation = queue_incarnation_,
                   .trainer = callers_.trainer_incarnation(),
                   .version = batches_.version(),
                   .end = replay_end_,
                   .phase = phase_};
  if (engines_.published())
    state.published.push_back({.policy = 0, .version = *engines_.published(), .verified = true});
  return state;
}

StatsAnswer Job::Stats() const {
  StatsAnswer stats{.ledger = ledger_,
                    .version = batches_.version(),
                    .lowest = engines_.LowestVersion(now_).value_or(-1),
                    .admission_staleness = admission_.versions(),
                    .advice = admission_.MakeAdvice(),
                    .sampler = prompts_.DescribeSampler()};
  stats.groups = {{"open", groups_.open().size()},
                  {"accepted", groups_.accepted().size()},
                  {"in_batch", 0},
                  {"applied", 0},
                  {"quarantined", prompts_.progress().quarantined.size()},
                  {"starved", failures_.CountStarved()},
                  {"overdue", 0}};
  for (const auto& [slot, ordinal] : groups_.open())
    stats.groups["overdue"] += groups_.at(ordinal).overdue;
  for (const auto& [k, batch] : batches_.batches())
    stats.groups[batch.applied ? "applied" : "in_batch"] += batch.groups.size();
  for (const auto& [why, count] : counters_.filtered) stats.groups["filtered_" + why] = count;
  if (spec_.first_wave > 0) {
    stats.groups["second_wave"] = counters_.second_waves;
    stats.groups["first_wave_only"] = counters_.first_waves_only;
    stats.answers_saved = counters_.answers_saved;
  }

  // Slots of steps that are cut already belong to groups that the cut left behind.
  uint64_t overdue = 0, used = 0;
  for (const auto& [step, holders] : groups_.slots().steps())
    (step < batches_.next_cut() ? overdue : used) += holders.size();
  const int64_t window =
      std::max<int64_t>(0, WindowEnd().value_or(batches_.next_cut() - 1) - batches_.next_cut() + 1);
  stats.slots = {{"used", used},
                 {"overdue", overdue},
                 {"limit_per_step", groups_.slots().limit()},
                 {"window_steps", static_cast<uint64_t>(window)}};

  stats.bytes = {{"reserved", groups_.reserved_bytes()},
                 {"stored", groups_.stored_bytes()},
                 {"quota", spec_.quota_bytes},
                 {"share", allowed_bytes()}};
  stats.waiting = {{"Admit", 0}, {"LeaseTasks", 0}, {"AcquireBatch", 0}};
  static constexpr const char* kCalls[] = {"Admit", "LeaseTasks", "AcquireBatch"};
  for (const ParkedCalls::Call& call : parked_.calls()) ++stats.waiting[kCalls[call.input.index()]];
  for (const auto& [age, count] : staleness_) {
    if (count != 0) stats.staleness[absl::StrCat(age)] = count;
  }
  AddLengths(counters_, stats);
  return stats;
}

}  // namespace sluice::queue
