#include "tests/bench/async/measure.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "tests/bench/report.h"

namespace sluice::bench {
namespace {

// A share of the wall time, and the metric whose increase it is; if `rest` is set, it is what that
// increase leaves of the wall time.
struct Share {
  const char *figure, *role, *metric, *label;
  bool rest = false;
};
constexpr char kTrainerPhases[] = "sluice_trainer_phase_seconds_total";
constexpr char kRolloutPhases[] = "sluice_rollout_phase_seconds_total";
constexpr Share kShares[] = {
    {"trainer.idle_share", "trainer", kTrainerPhases, "phase=\"wait_data\""},
    {"trainer.forward_backward_share", "trainer", kTrainerPhases, "phase=\"forward_backward\""},
    {"trainer.optim_share", "trainer", kTrainerPhases, "phase=\"optim\""},
    {"trainer.apply_share", "trainer", kTrainerPhases, "phase=\"apply\""},
    {"trainer.publish_share", "trainer", kTrainerPhases, "phase=\"publish\""},
    {"rollout.idle_share", "rollout", kRolloutPhases, "phase=\"idle\""},
    {"rollout.decode_share", "rollout", kRolloutPhases, "phase=\"decode\""},
    {"rollout.prefill_share", "rollout", kRolloutPhases, "phase=\"prefill\""},
    {"rollout.activate_share", "rollout", kRolloutPhases, "phase=\"activate\""},
    // The reward has no metric of its idle time, only one of the time in which it scores. So the
    // time in which it reads answers and sends scores counts as idle.
    {"reward.idle_share", "reward", "sluice_reward_duration_seconds_sum", "", /*rest=*/true},
};

double SecondsBetween(absl::Time from, absl::Time to) { return absl::ToDoubleSeconds(to - from); }

// The increase of a metric from the window's begin to its end, summed over the daemons of a role.
// If `seconds` is given, it is set to the time between the two reads.
double Increase(const Window& window, const std::string& role, const std::string& metric,
                const std::string& label = "", double* seconds = nullptr) {
  double increase = 0;
  for (size_t i = 0; i < window.end.size(); ++i) {
    if (window.end[i].role != role) continue;
    increase += SumMetric(window.end[i].metrics, metric, label) -
                SumMetric(window.begin[i].metrics, metric, label);
    if (seconds != nullptr) *seconds = SecondsBetween(window.begin[i].at, window.end[i].at);
  }
  return increase;
}

void AddShares(const Window& window, std::map<std::string, double>* out) {
  for (const Share& share : kShares) {
    double seconds = 0;
    const double spent = Increase(window, share.role, share.metric, share.label, &seconds);
    const double part = seconds > 0 ? spent / seconds : 0;
    (*out)[share.figure] = share.rest ? 1 - part : part;
  }
}

void AddCpuSeconds(const Window& window, double steps, std::map<std::string, double>* out) {
  for (size_t i = 0; i < window.end.size(); ++i) {
    const double used = (window.end[i].cpu_seconds - window.begin[i].cpu_seconds) / steps;
    (*out)[absl::StrCat(window.end[i].role, ".cpu_seconds_per_step")] += used;
    (*out)["cpu_seconds_per_step"] += used;
  }
}

// Staleness of the trained tokens, where the oldest token of an answer gains it, and the share of
// the sampled tokens that no step trained.
void AddStaleness(const Window& window, std::map<std::string, double>* out) {
  double tokens = 0, sum = 0, highest = 0;
  for (size_t i = 1; i < window.steps.size(); ++i) {
    for (const auto& [staleness, count] : window.steps[i].staleness()) {
      const double versions = std::stod(staleness);
      tokens += static_cast<double>(count);
      sum += versions * static_cast<double>(count);
      highest = std::max(highest, versions);
    }
  }

  (*out)["staleness_mean"] = tokens == 0 ? 0 : sum / tokens;
  (*out)["staleness_max"] = highest;
  for (const char* const where : {"in_flight", "in_queue"}) {
    const std::string label = absl::StrCat("where=\"", where, "\"");
    const double count = Increase(window, "queue", "sluice_queue_staleness_versions_count", label);
    const double versions = Increase(window, "queue", "sluice_queue_staleness_versions_sum", label);
    (*out)[absl::StrCat("staleness_", where)] = count == 0 ? 0 : versions / count;
  }

  const double generated = Increase(window, "rollout", "sluice_rollout_tokens_generated_total");
  const double dropped = Increase(window, "queue", "sluice_queue_tokens_dropped_total");
  (*out)["dropped_tokens_share"] = generated == 0 ? 0 : dropped / generated;
}

void AddLengths(const std::vector<double>& lengths, std::map<std::string, double>* out) {
  const double count = static_cast<double>(std::max<size_t>(1, lengths.size()));
  (*out)["answer_tokens.mean"] = std::accumulate(lengths.begin(), lengths.end(), 0.0) / count;
  (*out)["answer_tokens.p50"] = Quantile(lengths, 0.5);
  (*out)["answer_tokens.p99"] = Quantile(lengths, 0.99);
  (*out)["answer_tokens.max"] = Quantile(lengths, 1);
}

}  // namespace

std::map<std::string, double> MeasureWindow(const Window& window) {
  SLUICE_CHECK(window.steps.size() >= 2 && window.begin.size() == window.end.size());
  std::map<std::string, double> out;
  const double steps = static_cast<double>(window.steps.size() - 1);
  const double seconds = SecondsBetween(rpc::FromProto(window.steps.front().at()),
                                        rpc::FromProto(window.steps.back().at()));
  out["seconds_per_step"] = seconds / steps;
  out["steps_per_second"] = steps / seconds;

  double trained = 0;
  for (size_t i = 1; i < window.steps.size(); ++i) {
    const auto& values = window.steps[i].values();
    if (const auto it = values.find("tokens"); it != values.end()) trained += it->second;
  }
  out["tokens_trained_per_second"] = trained / seconds;

  AddShares(window, &out);
  AddCpuSeconds(window, steps, &out);
  AddStaleness(window, &out);
  AddLengths(window.answer_tokens, &out);

  // Mean number of answers that one step of the engine advances.
  const double engine_steps =
      Increase(window, "rollout", "sluice_rollout_decode_step_duration_seconds_count");
  out["rollout.answers_per_engine_step"] =
      engine_steps == 0
          ? 0
          : Increase(window, "rollout", "sluice_rollout_tokens_generated_total") / engine_steps;
  // Time in which each role works per step. The larger one is the least time of a step with these
  // speeds, whatever overlaps.
  out["trainer.busy_seconds_per_step"] = out["seconds_per_step"] * (1 - out["trainer.idle_share"]);
  out["rollout.busy_seconds_per_step"] = out["seconds_per_step"] * (1 - out["rollout.idle_share"]);
  return out;
}

std::string UnitOf(const std::string& figure) {
  for (const Share& share : kShares) {
    if (figure != share.figure) continue;
    const std::string labels = share.label[0] == '\0' ? "" : absl::StrCat("{", share.label, "}");
    return absl::StrCat("of wall time: ", share.rest ? "1 - " : "", share.metric, labels);
  }
  if (absl::EndsWith(figure, "_per_second")) return "1/s";
  if (absl::EndsWith(figure, "seconds_per_step")) return "s";
  if (absl::StartsWith(figure, "answer_tokens")) return "tokens";
  if (absl::StartsWith(figure, "staleness")) return "versions";
  if (figure == "dropped_tokens_share") return "of sampled tokens";
  return "answers";
}

}  // namespace sluice::bench
