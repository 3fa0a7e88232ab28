#include "common/algorithms/advantage.h"

#include <cmath>
#include <map>

#include "common/base/status.h"

namespace sluice {
namespace {

constexpr double kFlat = 1e-6;  // A std up to this carries no signal.
constexpr double kEps = 1e-6;   // Added to sigma.

// Moments of the finite rewards of one group.
struct GroupMoments {
  int64_t count = 0;
  double sum = 0;
  double squares = 0;  // sum (R_i - mean)^2
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
  double std() const { return count > 1 ? std::sqrt(squares / static_cast<double>(count - 1)) : 0; }
};

// Whether a reward enters the statistics.
bool IsUsable(Scale scale, double reward) {
  return std::isfinite(reward) && (scale != Scale::kGroupMean || reward >= 0);
}

GroupMoments MomentsOf(Scale scale, absl::Span<const double> rewards) {
  GroupMoments g;
  for (double r : rewards) {
    if (IsUsable(scale, r)) g.sum += r, ++g.count;
  }
  for (double r : rewards) {
    if (IsUsable(scale, r)) g.squares += (r - g.mean()) * (r - g.mean());
  }
  return g;
}

// The divisor of the group's own members; 0 if there is no signal.
double GroupScale(Scale scale, const GroupMoments& g) {
  if (scale == Scale::kZero) return 0;
  if (scale == Scale::kGroup) return g.std() + kEps;
  if (scale == Scale::kGroupPopulation) return std::sqrt(g.squares / static_cast<double>(g.count));
  if (scale == Scale::kGroupMean) return g.mean() > 0 ? g.mean() : 0;
  return 1;
}

double CentreReward(Centre centre, double reward, const GroupMoments& g, double batch_mean) {
  switch (centre) {
    case Centre::kNone: return reward;
    case Centre::kBatch: return reward - batch_mean;
    case Centre::kGroup: return reward - g.mean();
    case Centre::kGroupLoo: return reward - (g.sum - reward) / static_cast<double>(g.count - 1);
  }
  return 0;
}

}  // namespace

std::vector<double> AdvantageStream::AddGroup(absl::Span<const double> rewards) {
  std::vector<double> advantage(rewards.size(), 0.0);
  const GroupMoments g = MomentsOf(rule_.scale, rewards);
  const bool single = g.count == 1, flat = g.count > 1 && g.std() <= kFlat;

  ++groups_;
  spread_groups_ += g.count > 1 && !flat;
  bad_rewards_ += static_cast<int64_t>(rewards.size()) - g.count;
  singleton_groups_ += single;
  flat_groups_ += flat;

  const double scale = GroupScale(rule_.scale, g);
  // Without a spread in the group, the group's own statistics say nothing.
  const bool zero = g.count == 0 || scale == 0 || (NeedsGroup(rule_) && (single || flat));
  if (rule_.scale == Scale::kPooled && g.count > 1) count_ += g.count - 1, squares_ += g.squares;

  for (size_t i = 0; i < rewards.size(); ++i) {
    if (!IsUsable(rule_.scale, rewards[i])) continue;
    const double c = zero ? 0 : CentreReward(rule_.centre, rewards[i], g, batch_mean_);
    advantage[i] = zero ? 0 : c / scale;
    // Welford's update.
    if (rule_.scale == Scale::kBatch && !(single && HasGroupCentre(rule_))) {
      const double delta = c - mean_;
      mean_ += delta / static_cast<double>(++count_);
      squares_ += delta * (c - mean_);
    }
  }
  return advantage;
}

double AdvantageStream::StepFactor() const {
  if (!IsStepWide(rule_)) return 1;
  // For the pooled scale, count_ is sum_g (n_g - 1) already.
  const int64_t degrees = rule_.scale == Scale::kPooled ? count_ : count_ - 1;
  if (degrees < 1) return 0;
  const double sigma = std::sqrt(squares_ / static_cast<double>(degrees));
  return sigma <= kFlat ? 0 : 1 / (sigma + kEps);
}

AdvantageResult ComputeAdvantages(const AdvantageRule& rule, absl::Span<const double> rewards,
                                  absl::Span<const int64_t> groups) {
  SLUICE_CHECK(rewards.size() == groups.size());
  double batch_sum = 0;
  int64_t batch_count = 0;

  // Groups are visited in the order of their ids, so that sums do not depend on the order of
  // arrival.
  std::map<int64_t, std::vector<size_t>> members;
  for (size_t i = 0; i < rewards.size(); ++i) {
    members[groups[i]].push_back(i);
    if (std::isfinite(rewards[i])) batch_sum += rewards[i], ++batch_count;
  }

  AdvantageStream stream(rule, batch_count > 0 ? batch_sum / static_cast<double>(batch_count) : 0);
  AdvantageResult result;
  result.advantage.resize(rewards.size());
  for (const auto& [group, indices] : members) {
    std::vector<double> group_rewards;
    for (size_t i : indices) group_rewards.push_back(rewards[i]);
    const std::vector<double> values = stream.AddGroup(group_rewards);
    for (size_t j = 0; j < indices.size(); ++j) result.advantage[indices[j]] = values[j];
  }

  const double factor = stream.StepFactor();
  for (double& a : result.advantage) a *= factor;
  result.singleton_groups = stream.singleton_groups();
  result.flat_groups = stream.flat_groups();
  result.bad_rewards = stream.bad_rewards();
  return result;
}

}  // namespace sluice
