#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/algorithms/advantage.h"
#include "common/algorithms/aggregation.h"
#include "common/algorithms/diagnostics.h"
#include "services/trainer/core/experience.h"
#include "services/trainer/core/settings.h"

namespace sluice::trainer {

// One trajectory with trained tokens, as the loss sees it. T_i trained tokens.
struct Sequence {
  uint32_t group = 0;  // In the order of the groups of the step.
  // Up to the last one that predicts a trained token; what follows has no gradient.
  std::vector<int32_t> tokens;
  std::vector<uint16_t> routing;  // [tokens, layers, k], or empty: as Trajectory has it.
  std::vector<int32_t> rows;      // [T_i] ascending: tokens[rows[j]] predicts targets[j].
  std::vector<int32_t> targets;   // [T_i]
  std::vector<float> behavior;    // [T_i] behaviour log-probs; empty in supervised data.
  float advantage = 0;            // Up to SequenceBuilder::factor().
  double weight = 1;              // Of the aggregation, without the step's scale.
};

// The unshaped task rewards of a step.
class RewardStats {
 public:
  void Add(double reward);

  int64_t count() const { return count_; }
  // 0 where there are none. std: sample standard deviation (ddof 1), 0 of a single one.
  double mean() const;
  double std() const;
  double min() const { return min_; }
  double max() const { return max_; }

 private:
  int64_t count_ = 0;
  double sum_ = 0;
  double first_ = 0, shifted_ = 0,
         squares_ = 0;  // Sums of r - first and of its square: exactly 0 where all are equal.
  double min_ = 0, max_ = 0;
};

// Turns the groups of one step into sequences: shapes rewards, computes advantages, counts what the
// step's denominators need, and refuses tokens that break the staleness bound, whatever the queue
// let through.
class SequenceBuilder {
 public:
  // `batch_mean`: mean shaped reward of the whole step, for advantages centred on it. `settings`
  // outlives the builder.
  SequenceBuilder(const Settings& settings, int64_t k, double batch_mean = 0);

  // Appends the groups' sequences to *out, those without a trained token left out.
  // INVALID_ARGUMENT: columns of unequal length, a trained first token. FAILED_PRECONDITION STALE:
  // a trained token's staleness is negative or above max_staleness. Both name the trajectory.
  absl::Status Add(absl::Span<const Group> groups, std::vector<Sequence>* out);

  // What all advantages are multiplied by once the step is complete.
  double factor() const { return advantages_.Factor(); }
  const StepCounts& counts() const { return counts_; }
  const StalenessStats& staleness() const { return staleness_; }
  const AdvantageStream& advantages() const { return advantages_; }
  const RewardStats& rewards() const { return rewards_; }  // Of members with a finite reward.

 private:
  absl::Status Check(const Group& group, const Trajectory& trajectory) const;
  void CountVersions(const Trajectory& trajectory);

  const Settings& settings_;
  const int64_t k_;
  const bool pooled_;  // The pool that comes with a group enters its statistics.
  Aggregation aggregation_;
  AdvantageStream advantages_;
  StepCounts counts_;
  StalenessStats staleness_;
  uint32_t groups_ = 0;
  RewardStats rewards_;
};

// The reward that advantages are made of: the task reward, less the soft overlong penalty where the
// job asks for it.
double ShapedReward(const Settings& settings, const Trajectory& trajectory);

// Mean shaped reward over all members with a finite one; 0 if there are none.
double MeanReward(const Settings& settings, absl::Span<const Group> groups);

}  // namespace sluice::trainer
