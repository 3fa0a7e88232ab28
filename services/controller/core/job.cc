#include "services/controller/core/job.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/numbers.h"

namespace sluice::controller {
namespace {

template <typename Iterator>
std::optional<double> MeanReward(Iterator begin, Iterator end) {
  double sum = 0, count = 0;
  for (int taken = 0; begin != end && taken < kRewardSteps; ++begin, ++taken) {
    sum += begin->second.reward_mean * begin->second.reward_count;
    count += begin->second.reward_count;
  }
  return count > 0 ? std::optional(sum / count) : std::nullopt;
}

}  // namespace

StepSummary SummaryOf(const StepReport& step) {
  const auto find = [&](const char* name) -> std::optional<double> {
    const auto value = step.values.find(name);
    if (value == step.values.end() || !std::isfinite(value->second)) return std::nullopt;
    return value->second;
  };
  return {.reward_mean = find("reward_mean").value_or(0),
          .reward_count = find("reward_count").value_or(0),
          .tokens = find("tokens").value_or(0),
          .staleness = step.staleness};
}

const Worker* AssignRecord::Find(const std::string& id) const {
  for (const Worker& worker : workers) {
    if (worker.id == id) return &worker;
  }
  return nullptr;
}

StepSummary SummaryOf(const StepReport& step) {
  const auto value = [&](const char* name) {
    const auto it = step.values.find(name);
    return it == step.values.end() ? 0.0 : it->second;
  };
  return {.reward_mean = value("reward_mean"),
          .reward_count = value("reward_count"),
          .tokens = value("tokens"),
          .staleness = step.staleness,
          .signal = SignalOf(step)};
}

Result ResultOf(const Job& job, JobState state, double seconds) {
  Result result;
  result.job = job.record.id;
  result.state = std::string(StateName(state));
  result.steps = job.record.step;
  result.seconds = seconds;
  result.reward_first = MeanReward(job.steps.begin(), job.steps.end());
  result.reward_last = MeanReward(job.steps.rbegin(), job.steps.rend());
  result.tokens_generated = job.record.ledger.tokens_generated;
  result.tokens_trained = job.record.ledger.tokens_trained;
  if (job.record.ledger.tokens_generated == 0) {  // Supervised: the queue hands out rows, the trainer alone knows their tokens.
    double tokens = job.record.folded.tokens;
    for (const auto& [k, step] : job.steps) tokens += step.tokens;
    result.tokens_trained = static_cast<int64_t>(tokens);
  }
  result.staleness_histogram = job.record.folded.staleness;
  for (const auto& [k, step] : job.steps) {
    for (const auto& [staleness, tokens] : step.staleness) result.staleness_histogram[staleness] += tokens;
  }
  for (const auto& [staleness, tokens] : result.staleness_histogram) {
    int64_t value = 0;
    if (tokens > 0 && absl::SimpleAtoi(staleness, &value)) result.staleness_max = std::max(result.staleness_max, value);
  }
  result.ledger = job.record.ledger;
  result.restarts = job.record.restarts;
  for (const Role role : kRoles) result.restarts.try_emplace(std::string(RoleName(role)), 0);
  result.restarts.try_emplace("controller", 0);
  result.checkpoint = job.record.checkpoint;
  result.warnings = job.learning.Warnings();
  return result;
}

}  // namespace sluice::controller
