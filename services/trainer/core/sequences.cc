#include "services/trainer/core/sequences.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/algorithms/duration.h"
#include "common/algorithms/returns.h"
#include "common/algorithms/shaping.h"
#include "common/base/status.h"

namespace sluice::trainer {
namespace {

int64_t CountTrained(const Trajectory& trajectory) {
  return std::count_if(trajectory.mask.begin(), trajectory.mask.end(),
                       [](uint8_t m) { return m != 0; });
}

std::vector<uint64_t> TrainedPositions(const Trajectory& trajectory) {
  std::vector<uint64_t> positions;
  for (size_t t = 0; t < trajectory.mask.size(); ++t) {
    if (trajectory.mask[t]) positions.push_back(t);
  }
  return positions;
}

// Whether the rewards in Group::pool enter the group's statistics. They are task rewards of answers
// whose lengths and log-probs are not known here. If the members' rewards are shaped by those, the
// two cannot be compared, and the members' rewards are used alone.
bool UsesPool(const Rules& rules) {
  return rules.advantage.scale == Scale::kPooled && rules.truncation != Truncation::kPenalty &&
         rules.reward_kl == 0;
}

// Sets the advantages of a sequence before they are whitened, and the targets of the critic.
// `advantage` is that of its trajectory.
void SetAdvantages(const Rules& rules, const Trajectory& trajectory, double advantage,
                   Sequence* sequence) {
  const TokenRule rule = rules.advantage.tokens;
  const size_t tokens = sequence->targets.size();
  std::vector<double> values(tokens, advantage);
  if (UsesTokenRewards(rules.advantage)) {
    const std::vector<uint64_t> places = TrainedPositions(trajectory);
    values = PlaceRewards(advantage, trajectory.token_rewards, places);
  }
  if (rule != TokenRule::kSame && !trajectory.kl.empty()) {
    for (size_t t = 0; t < tokens; ++t) values[t] -= rules.reward_kl * trajectory.kl[t];
  }
  if (rule == TokenRule::kGae) {
    SLUICE_CHECK(trajectory.values.size() >= tokens);
    sequence->value.assign(trajectory.values.begin(),
                           trajectory.values.begin() + static_cast<int64_t>(tokens));
    sequence->advantage.resize(tokens);
    sequence->value_target.resize(tokens);
    ComputeGae(rules.gae, values, sequence->value,
               trajectory.values.size() > tokens ? trajectory.values[tokens] : 0,
               absl::MakeSpan(sequence->advantage), absl::MakeSpan(sequence->value_target));
    return;
  }
  if (rule == TokenRule::kReturns) ToReturns(rules.gae.gamma, absl::MakeSpan(values));
  sequence->advantage.assign(values.begin(), values.end());
}

}  // namespace

Sequence MakeSequence(const Trajectory& trajectory, uint32_t group, int64_t k) {
  Sequence sequence;
  sequence.group = group;
  for (size_t t = 0; t < trajectory.tokens.size(); ++t) {
    if (!trajectory.mask[t]) continue;
    sequence.rows.push_back(static_cast<int32_t>(t) - 1);
    sequence.targets.push_back(trajectory.tokens[t]);
    if (trajectory.logprobs.empty()) continue;
    sequence.behavior.push_back(trajectory.logprobs[t]);
    sequence.staleness.push_back(static_cast<int32_t>(k - trajectory.versions[t]));
  }

  for (const Turn& turn : trajectory.turns) {
    const auto end = std::lower_bound(sequence.rows.begin(), sequence.rows.end(),
                                      static_cast<int64_t>(turn.first + turn.count) - 1);
    const auto place = static_cast<size_t>(end - sequence.rows.begin());
    if (place > (sequence.turns.empty() ? 0 : sequence.turns.back().first))
      sequence.turns.emplace_back(place, turn.seconds);
  }

  // A trajectory without a trained token makes no sequence, so there is a last row.
  const size_t length = static_cast<size_t>(sequence.rows.back()) + 1;
  sequence.tokens.assign(trajectory.tokens.begin(), trajectory.tokens.begin() + length);
  sequence.routing.assign(
      trajectory.routing.begin(),
      trajectory.routing.begin() + trajectory.routing.size() / trajectory.tokens.size() * length);
  return sequence;
}

void RewardStats::Add(double reward) {
  if (count_ == 0) first_ = min_ = max_ = reward;
  ++count_;
  sum_ += reward;
  shifted_ += reward - first_;
  squares_ += (reward - first_) * (reward - first_);
  min_ = std::min(min_, reward);
  max_ = std::max(max_, reward);
}

double RewardStats::mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }

double RewardStats::std() const {
  if (count_ < 2) return 0;
  const double n = static_cast<double>(count_);
  return std::sqrt(std::max(0.0, squares_ - shifted_ * shifted_ / n) / (n - 1));
}

double ShapedReward(const Settings& settings, const Rules& rules, const Trajectory& trajectory) {
  double reward = trajectory.reward;
  if (rules.truncation == Truncation::kPenalty) {
    reward += SoftOverlong(CountTrained(trajectory), settings.max_response,
                           DefaultOverlongBuffer(settings.max_response));
  }
  if (rules.advantage.tokens == TokenRule::kSame)
    reward -= rules.reward_kl * std::accumulate(trajectory.kl.begin(), trajectory.kl.end(), 0.0);
  return reward;
}

void WhitenAdvantages(const AdvantageRule& rule, absl::Span<Sequence* const> sequences) {
  if (rule.tokens == TokenRule::kSame || !rule.whiten) return;
  TokenMoments moments;
  for (const Sequence* sequence : sequences) {
    for (const float a : sequence->advantage) moments.Add(a);
  }
  for (Sequence* sequence : sequences) {
    for (float& a : sequence->advantage) a = static_cast<float>(moments.Whiten(a));
  }
}

double WeighByDuration(const AdvantageRule& rule, absl::Span<Sequence* const> sequences) {
  if (!rule.duration_aware) return 0;
  std::vector<double> seconds;
  for (const Sequence* sequence : sequences) {
    for (const auto& [end, dt] : sequence->turns) seconds.push_back(dt);
  }
  const std::vector<double> factors = DurationFactors(seconds);
  size_t turn = 0;
  for (Sequence* sequence : sequences) {
    size_t t = 0;
    for (const auto& [end, dt] : sequence->turns) {
      for (; t < end; ++t) sequence->advantage[t] *= static_cast<float>(factors[turn]);
      ++turn;
    }
  }
  return MeanDuration(seconds);
}

double MeanReward(const Settings& settings, const Rules& rules, absl::Span<const Group> groups) {
  double sum = 0;
  int64_t count = 0;
  for (const Group& group : groups) {
    for (const Trajectory& trajectory : group.members) {
      const double reward = ShapedReward(settings, rules, trajectory);
      if (!std::isfinite(reward)) continue;
      sum += reward;
      ++count;
    }
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

SequenceBuilder::SequenceBuilder(const Settings& settings, const Rules& rules, int64_t k,
                                 double batch_mean)
    : settings_(settings), rules_(rules), k_(k), advantages_(rules.advantage, batch_mean) {}

double SequenceBuilder::reward_kl() const {
  return counts_.sequences == 0 ? 0 : reward_kl_sum_ / static_cast<double>(counts_.sequences);
}

bool SequenceBuilder::IsTrained(const Trajectory& trajectory) const {
  if (!rl()) return true;
  return std::isfinite(trajectory.reward) &&
         !(trajectory.truncated && rules_.truncation == Truncation::kFilter);
}

absl::Status SequenceBuilder::CheckTrajectory(const Group& group,
                                              const Trajectory& trajectory) const {
  const auto name = [&] {
    return absl::StrCat("step ", k_, ", group ", group.id.hex(), " member ", trajectory.member,
                        ": ");
  };
  const size_t length = trajectory.tokens.size();
  if (trajectory.mask.size() != length ||
      (rl() && (trajectory.logprobs.size() != length || trajectory.versions.size() != length))) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), "its columns differ in length: it has ", length, " tokens, ",
                     trajectory.mask.size(), " mask entries, ", trajectory.logprobs.size(),
                     " log-probs and ", trajectory.versions.size(), " versions"));
  }
  if (length > 0 && trajectory.routing.size() % length != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), length, " tokens went through ", trajectory.routing.size(),
                     " experts, which is not a multiple of the tokens"));
  }
  if (length > 0 && trajectory.mask[0]) {
    return absl::InvalidArgumentError(absl::StrCat(
        name(), "its first token is trainable; a prompt of at least one token is needed"));
  }

  for (size_t i = 0; i < trajectory.token_rewards.size(); ++i) {
    const TokenReward& earned = trajectory.token_rewards[i];
    if (UsesTokenRewards(rules_.advantage) && earned.position < length &&
        std::isfinite(earned.value) &&
        (i == 0 || earned.position > trajectory.token_rewards[i - 1].position))
      continue;
    return absl::InvalidArgumentError(absl::StrCat(
        name(), "token ", earned.position, " of ", length, " has earned ", earned.value,
        UsesTokenRewards(rules_.advantage)
            ? ", wanted: ascending positions and finite values"
            : ", but the job's advantages give all tokens of an answer the same; use "
              "algorithm.advantage.kind: reinforce_pp or gae"));
  }

  // Supervised data has no versions.
  if (!rl()) return absl::OkStatus();
  for (size_t t = 0; t < length; ++t) {
    const int64_t staleness = k_ - trajectory.versions[t];
    if (!trajectory.mask[t] || (staleness >= 0 && staleness <= settings_.max_staleness)) continue;
    return Error(absl::StatusCode::kFailedPrecondition, "STALE",
                 absl::StrCat(name(), "token ", t, " is of version ", trajectory.versions[t],
                              ", so its staleness is ", staleness, ", which is not in 0..",
                              settings_.max_staleness, " (max_staleness)"));
  }
  return absl::OkStatus();
}

void SequenceBuilder::CountVersions(const Trajectory& trajectory) {
  std::vector<VersionRun> runs;
  for (size_t t = 0; t < trajectory.tokens.size(); ++t) {
    if (!trajectory.mask[t]) continue;
    if (runs.empty() || runs.back().version.number != trajectory.versions[t])
      runs.push_back({{0, trajectory.versions[t]}, 0, 0});
    ++runs.back().count;
  }
  staleness_.Add(runs, k_);
}

absl::Status SequenceBuilder::Add(absl::Span<const Group> groups, std::vector<Sequence>* out) {
  for (const Group& group : groups) {
    const uint32_t index = groups_++;

    // The statistics of the group count every member, trained or not.
    std::vector<double> rewards;
    int64_t group_tokens = 0;
    for (const Trajectory& trajectory : group.members) {
      SLUICE_RETURN_IF_ERROR(CheckTrajectory(group, trajectory));
      rewards.push_back(ShapedReward(settings_, rules_, trajectory));
      if (IsTrained(trajectory)) group_tokens += CountTrained(trajectory);
      if (rl() && settings_.rewards && std::isfinite(trajectory.reward))
        rewards_.Add(trajectory.reward);
    }
    if (UsesPool(rules_)) rewards.insert(rewards.end(), group.pool.begin(), group.pool.end());
    std::vector<double> advantages(group.members.size());
    if (rl()) advantages = advantages_.AddGroup(rewards);

    for (size_t i = 0; i < group.members.size(); ++i) {
      const Trajectory& trajectory = group.members[i];
      const int64_t tokens = IsTrained(trajectory) ? CountTrained(trajectory) : 0;
      if (tokens == 0) continue;
      Sequence& sequence = out->emplace_back(MakeSequence(trajectory, index, k_));
      if (rl()) {
        SetAdvantages(rules_, trajectory, advantages[i], &sequence);
        reward_kl_sum_ += std::accumulate(trajectory.kl.begin(), trajectory.kl.end(), 0.0) /
                          static_cast<double>(tokens);
      }
      sequence.weight = rules_.loss.aggregation.sequence_weight(tokens, group_tokens);
      counts_.tokens += tokens;
      ++counts_.sequences;
      if (rl()) CountVersions(trajectory);
      for (const TokenReward& earned : trajectory.token_rewards)
        rewarded_tokens_ += trajectory.mask[earned.position];
    }
    if (group_tokens > 0) ++counts_.prompts;
  }
  return absl::OkStatus();
}

}  // namespace sluice::trainer
