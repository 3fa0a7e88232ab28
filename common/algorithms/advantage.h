#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sluice {

// Group-relative advantages: A_i = c_i / (sigma + 1e-6), a centred reward over a scale. GRPO,
// Dr.GRPO, RLOO, POOL-LOO and LitePPO differ only in the pair chosen; the names are rows of
// AdvantageRows() (registry.h).
//
// Legend: R reward of a sequence, g its group (the sequences of one prompt), n_g the group's size.
// All statistics in fp64.

enum class Centre {
  kNone,      // c_i = R_i
  kBatch,     // c_i = R_i - mean over the step
  kGroup,     // c_i = R_i - mean_g
  kGroupLoo,  // c_i = R_i - mean of the other members of g
};

enum class Scale {
  kNone,    // A_i = c_i
  kGroup,   // sigma = std of R in g (ddof 1)
  kBatch,   // sigma = std of the c_i over the step (ddof 1)
  kPooled,  // sigma^2 = sum_g sum_{i in g} (R_i - mean_g)^2 / sum_g (n_g - 1)
};

struct AdvantageRule {
  Centre centre = Centre::kGroupLoo;
  Scale scale = Scale::kPooled;
};

// True where sigma needs every group of the step: a streamed advantage is final only up to that
// factor.
inline bool StepWide(const AdvantageRule& rule) {
  return rule.scale == Scale::kBatch || rule.scale == Scale::kPooled;
}

// The advantages of a step, one complete group after another.
//
// Edges: a group of one has A = 0 where its own statistics are needed (a group centre or a group
// scale); a group whose std is at most 1e-6 has A = 0 exactly under a group centre or a group
// scale; a member whose reward is not finite is left out of all statistics and gets A = 0. Groups
// of one enter no step-wide scale.
class AdvantageStream {
 public:
  // `batch_mean`: the mean reward of the whole step, for Centre::kBatch alone.
  explicit AdvantageStream(const AdvantageRule& rule, double batch_mean = 0)
      : rule_(rule), batch_mean_(batch_mean) {}

  // A_i of the group's members up to Factor(), in their order. The group's pool may hold members
  // that are not trained (other versions, trained before): they count in the statistics, and the
  // caller drops their values.
  std::vector<double> AddGroup(absl::Span<const double> rewards);

  // What the values of all AddGroup calls are multiplied by when the step is complete: 1 unless
  // StepWide, never negative; 0 where the scale is degenerate (at most 1e-6).
  double Factor() const;

  int64_t groups() const { return groups_; }
  // Groups whose rewards differ: at least two finite ones, with a std above 1e-6. Only their
  // members can have an advantage under a group centre.
  int64_t spread_groups() const { return spread_groups_; }
  int64_t singleton_groups() const { return singleton_groups_; }
  // Of two members and more, std at most 1e-6.
  int64_t flat_groups() const { return flat_groups_; }
  int64_t bad_rewards() const { return bad_rewards_; }  // Members with a reward that is not finite.

 private:
  AdvantageRule rule_;
  double batch_mean_;
  int64_t groups_ = 0, spread_groups_ = 0, singleton_groups_ = 0, flat_groups_ = 0,
          bad_rewards_ = 0;
  // kBatch: Welford's count, mean and sum of squares of the c_i. kPooled: `count_` is sum (n_g -
  // 1), `squares_` the numerator.
  int64_t count_ = 0;
  double mean_ = 0, squares_ = 0;
};

struct AdvantageResult {
  std::vector<double> advantage;  // [B]
  int64_t singleton_groups = 0, flat_groups = 0, bad_rewards = 0;
};

// The advantages of a whole step: rewards [B], group id of each [B] (any order, any ids).
AdvantageResult Advantages(const AdvantageRule& rule, absl::Span<const double> rewards,
                           absl::Span<const int64_t> groups);

}  // namespace sluice
