#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/algorithms/advantage.h"
#include "common/algorithms/aggregation.h"
#include "common/algorithms/diagnostics.h"
#include "services/trainer/core/experience.h"
#include "services/trainer/core/rules.h"
#include "services/trainer/core/settings.h"

namespace sluice::trainer {

// One trajectory with trained tokens, in the form that the loss needs. T_i is the number of its
// trained tokens.
struct Sequence {
  uint32_t group = 0;  // Index of its group in the step.
  // The tokens up to the last one that predicts a trained token. Later tokens get no gradient.
  std::vector<int32_t> tokens;
  std::vector<uint16_t> routing;  // [tokens, layers, k] or empty; see Trajectory.
  std::vector<int32_t> rows;      // [T_i], ascending: tokens[rows[j]] predicts targets[j].
  std::vector<int32_t> targets;   // [T_i]
  // Each is [T_i], and empty in supervised data. `staleness` is in versions. The advantages leave
  // out what is known only at the end of the step: SequenceBuilder::factor(), or the whitening.
  std::vector<float> behavior;  // Behaviour log-probs.
  std::vector<int32_t> staleness;
  std::vector<float> advantage;
  // Of each turn with a trained token: the place after its last one in `targets`, and the turn's
  // wall time in seconds, 0 if it is not known. Tokens of no turn are not in it.
  std::vector<std::pair<size_t, double>> turns;
  // Of a job with a critic, [T_i], else empty: its predictions before the step, and their targets.
  std::vector<float> value, value_target;
  // Weight that the loss's aggregation gives each token of this sequence, before the scale that is
  // common to the step.
  double weight = 1;
};

// Statistics of the task rewards of a step, before shaping.
class RewardStats {
 public:
  void Add(double reward);

  int64_t count() const { return count_; }
  // mean() and std() are 0 if there are no rewards. std() is the sample standard deviation (divided
  // by n - 1); it is 0 for one reward.
  double mean() const;
  double std() const;
  double min() const { return min_; }
  double max() const { return max_; }

 private:
  int64_t count_ = 0;
  double sum_ = 0;
  double first_ = 0;
  // The sums of r - first_ and of its square; exactly 0 if all rewards are equal.
  double shifted_ = 0, squares_ = 0;
  double min_ = 0, max_ = 0;
};

// Turns the groups of one step into sequences: it shapes rewards, computes advantages, and counts
// what the step's denominators need. It refuses tokens that are staler than max_staleness, even if
// the queue has let them through. Not thread-safe.
class SequenceBuilder {
 public:
  // `batch_mean` is the mean shaped reward of the whole step, for advantages that are centred on
  // it. `settings` and `rules` outlive the builder.
  SequenceBuilder(const Settings& settings, const Rules& rules, int64_t k, double batch_mean = 0);

  // Appends the groups' sequences to *out, without those that have no trained token.
  // INVALID_ARGUMENT: columns differ in length, a first token is to be trained, or rewards of
  // single tokens are malformed or would have no effect.
  // FAILED_PRECONDITION STALE: a trained token's staleness is negative or above max_staleness.
  // The messages name the trajectory.
  absl::Status Add(absl::Span<const Group> groups, std::vector<Sequence>* out);

  // Factor by which all advantages must be multiplied once the step is complete.
  double factor() const { return advantages_.StepFactor(); }
  int64_t groups() const { return groups_; }  // Number of groups that were added.
  const StepCounts& counts() const { return counts_; }
  const StalenessStats& staleness() const { return staleness_; }
  const AdvantageStream& advantages() const { return advantages_; }
  const RewardStats& rewards() const { return rewards_; }  // Of the members with a finite reward.
  // Number of trained tokens that have earned a part of the reward by themselves.
  int64_t rewarded_tokens() const { return rewarded_tokens_; }
  // Mean over the trained sequences of the mean over their tokens of the KL to the reference; 0 if
  // it does not enter the reward.
  double reward_kl() const;

 private:
  absl::Status CheckTrajectory(const Group& group, const Trajectory& trajectory) const;
  void CountVersions(const Trajectory& trajectory);

  // Whether the trajectory is trained on. It is not if its reward is not finite, or if it was cut
  // at the length limit and the job filters such answers.
  bool IsTrained(const Trajectory& trajectory) const;
  bool rl() const { return settings_.kind == Settings::Kind::kRl; }

  const Settings& settings_;
  const Rules& rules_;
  const int64_t k_;
  AdvantageStream advantages_;
  StepCounts counts_;
  StalenessStats staleness_;
  uint32_t groups_ = 0;
  RewardStats rewards_;
  double reward_kl_sum_ = 0;
  int64_t rewarded_tokens_ = 0;
};

// The sequence of a trajectory with at least one trained token, without advantage and weight. `k`
// is the step, from which staleness is counted.
Sequence MakeSequence(const Trajectory& trajectory, uint32_t group, int64_t k);

// The reward from which advantages are computed: the task reward, less the soft penalty for
// overlong answers and the KL to the reference if the job asks for them. Advantages of single
// tokens take the KL token by token, so it is not in this reward.
double ShapedReward(const Settings& settings, const Rules& rules, const Trajectory& trajectory);

// Whitens the advantages of a step's sequences over all their tokens, if the rule says so.
void WhitenAdvantages(const AdvantageRule& rule, absl::Span<Sequence* const> sequences);

// Multiplies the advantages of each turn of the step by its factor (duration.h), if the rule says
// so. Returns the mean time of a turn in seconds, 0 if none is known.
double WeighByDuration(const AdvantageRule& rule, absl::Span<Sequence* const> sequences);

// The mean shaped reward over all members with a finite one; 0 if there are none.
double MeanReward(const Settings& settings, const Rules& rules, absl::Span<const Group> groups);

}  // namespace sluice::trainer
