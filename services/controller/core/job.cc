#include "services/controller/core/job.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"

namespace sluice::controller {
namespace {

// Means over a stretch of steps. A step without a value does not count.
class StretchMean {
 public:
  void Add(const StepSummary& step) {
    rewards_ += step.signal.reward_mean.value_or(0) * step.reward_count;
    members_ += step.reward_count;
    losses_ += step.loss.value_or(0);
    steps_ += step.loss.has_value() ? 1 : 0;
  }
  std::optional<double> reward() const { return Divide(rewards_, members_); }
  std::optional<double> loss() const { return Divide(losses_, steps_); }

 private:
  static std::optional<double> Divide(double sum, double count) {
    return count > 0 ? std::optional(sum / count) : std::nullopt;
  }
  double rewards_ = 0, members_ = 0, losses_ = 0, steps_ = 0;
};

// The mean reward over the first kRewardSteps steps from `begin`.
template <typename Iterator>
std::optional<double> MeanReward(Iterator begin, Iterator end) {
  StretchMean mean;
  for (int taken = 0; begin != end && taken < kRewardSteps; ++begin, ++taken)
    mean.Add(begin->second);
  return mean.reward();
}

std::vector<CurvePoint> CurveOf(const std::map<int64_t, StepSummary>& steps) {
  std::vector<CurvePoint> curve;
  if (steps.empty()) return curve;
  const int64_t first = steps.begin()->first;
  const int64_t count = steps.rbegin()->first - first + 1;
  const int64_t points = std::min(count, kCurvePoints);

  // Divide the range of k, not the list: after ThinSteps() the list has gaps. A stretch without
  // steps gives no point.
  for (int64_t i = 0; i < points; ++i) {
    const int64_t from = first + i * count / points;
    const int64_t to = first + (i + 1) * count / points - 1;
    const auto begin = steps.lower_bound(from), end = steps.upper_bound(to);
    if (begin == end) continue;
    StretchMean mean;
    for (auto it = begin; it != end; ++it) mean.Add(it->second);
    curve.push_back({from, to, mean.reward(), mean.loss()});
  }
  return curve;
}

// Judges the points by reward, or by loss if no point has a reward. Of equal points the earliest is
// taken.
void SetBestAndWorst(Result* result) {
  const bool scored = std::any_of(result->curve.begin(), result->curve.end(),
                                  [](const CurvePoint& point) { return point.reward.has_value(); });
  const auto goodness = [scored](const CurvePoint& point) -> std::optional<double> {
    if (scored) return point.reward;
    return point.loss.has_value() ? std::optional(-*point.loss) : std::nullopt;
  };

  for (const CurvePoint& point : result->curve) {
    const std::optional<double> good = goodness(point);
    if (!good.has_value()) continue;
    if (!result->best.has_value() || *good > *goodness(*result->best)) result->best = point;
    if (!result->worst.has_value() || *good < *goodness(*result->worst)) result->worst = point;
  }
}

}  // namespace

StepSummary SummaryOf(const StepReport& step) {
  return {.reward_count = step.Find("reward_count").value_or(0),
          .tokens = step.Find("tokens").value_or(0),
          .loss = step.Find("loss"),
          .staleness = step.staleness,
          .signal = SignalOf(step)};
}

const Worker* AssignRecord::Find(const std::string& id) const {
  for (const Worker& worker : workers) {
    if (worker.id == id) return &worker;
  }
  return nullptr;
}

int64_t FirstStepAfter(const std::vector<TrainerGroup>& groups, int64_t incarnation) {
  int64_t first = TrainerGroup::kNone;
  for (const TrainerGroup& group : groups) {
    if (group.incarnation > incarnation) first = std::min(first, group.first_step);
  }
  return first;
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

  // In supervised training the queue hands out rows, and the trainer alone knows how many tokens
  // they have.
  if (job.record.ledger.tokens_generated == 0) {
    double tokens = job.record.folded.tokens;
    for (const auto& [k, step] : job.steps) tokens += step.tokens;
    result.tokens_trained = static_cast<int64_t>(tokens);
  }

  result.staleness_histogram = job.record.folded.staleness;
  for (const auto& [k, step] : job.steps) {
    for (const auto& [staleness, tokens] : step.staleness)
      result.staleness_histogram[staleness] += tokens;
  }
  for (const auto& [staleness, tokens] : result.staleness_histogram) {
    int64_t value = 0;
    if (tokens > 0 && absl::SimpleAtoi(staleness, &value))
      result.staleness_max = std::max(result.staleness_max, value);
  }

  result.ledger = job.record.ledger;
  result.restarts = job.record.restarts;
  // Roles that had no restart are listed with 0.
  for (const Role role : kRoles) result.restarts.try_emplace(std::string(RoleName(role)), 0);
  result.restarts.try_emplace("controller", 0);
  result.checkpoint = job.record.checkpoint;
  result.curve = CurveOf(job.steps);
  SetBestAndWorst(&result);
  result.warnings = job.learning.Warnings();
  result.eval = job.record.eval;
  return result;
}

}  // namespace sluice::controller
