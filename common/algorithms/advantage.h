#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sluice {

// Advantages from rewards: A_i = c_i / (sigma + 1e-6), a centred reward divided by a scale. GRPO,
// Dr.GRPO, RLOO, POOL-LOO, LitePPO and MaxRL differ only in the centre and the scale they choose;
// their names are rows of AdvantageRows() (registry.h). REINFORCE++ and GAE make advantages of
// single tokens from them (TokenRule), and VCPO's baseline needs gradients (min_variance.h).
//
// Legend: R_i is the reward of sequence i, g its group (the sequences of one prompt), n_g the size
// of the group, mean_g the mean reward of the group. `ddof 1` means division by n - 1. All
// statistics are computed in fp64.

// What is subtracted from the reward. LOO means leave one out.
enum class Centre {
  kNone,      // c_i = R_i
  kBatch,     // c_i = R_i - mean over the step
  kGroup,     // c_i = R_i - mean_g
  kGroupLoo,  // c_i = R_i - mean of the other members of g
};

// What the centred reward is divided by.
enum class Scale {
  kNone,             // A_i = c_i
  kGroup,            // sigma = std of R in g (ddof 1)
  kBatch,            // sigma = std of the c_i over the step (ddof 1)
  kGroupPopulation,  // A_i = c_i / std of R in g (ddof 0)
  kPooled,           // sigma^2 = sum_g sum_{i in g} (R_i - mean_g)^2 / sum_g (n_g - 1)
  // A_i = c_i / mean_g (MaxRL, arXiv 2602.02710), and 0 if mean_g is not above 0. Rewards must not
  // be negative; a negative one counts as not finite.
  kGroupMean,
  kZero,  // A_i = 0: nothing is learned from rewards.
};

// How the tokens of a sequence get their advantages from A_i.
enum class TokenRule {
  kSame,  // All of them have A_i.
  // All of them have A_i, less the token's part of the KL; then they are whitened. Tokens of a
  // group whose rewards are all equal, which enter with 0, are whitened too.
  kWhitened,
  // The rewards of single tokens (PlaceRewards() in returns.h) add up to A_i; each token has its
  // discounted return, whitened.
  kReturns,
  // The same rewards; each token has an advantage over a critic's value (gae.h), which is whitened
  // if AdvantageRule::whiten.
  kGae,
};

// An estimator of advantages.
struct AdvantageRule {
  Centre centre = Centre::kGroupLoo;
  Scale scale = Scale::kPooled;
  TokenRule tokens = TokenRule::kSame;
  // The baseline is that of min_variance.h. Until the gradients are known, A_i has the group's mean
  // as its baseline.
  bool min_variance = false;
  // Only for TokenRule::kGae: the advantages are whitened over the tokens of the step.
  bool whiten = true;
  // After all that, the advantages of each turn are multiplied by its factor of duration.h.
  bool duration_aware = false;
};

// Whether rewards have no effect on the advantages.
inline bool IgnoresRewards(const AdvantageRule& rule) { return rule.scale == Scale::kZero; }
// Whether a reward of a single token has another effect than one of the whole sequence.
inline bool UsesTokenRewards(const AdvantageRule& rule) {
  return rule.tokens == TokenRule::kReturns || rule.tokens == TokenRule::kGae;
}
// Whether the job has a critic, which is trained beside the policy.
inline bool NeedsCritic(const AdvantageRule& rule) { return rule.tokens == TokenRule::kGae; }

inline bool HasGroupCentre(const AdvantageRule& rule) {
  return rule.centre == Centre::kGroup || rule.centre == Centre::kGroupLoo;
}
// Whether the advantages compare the members of a group, so that one member alone has none.
inline bool NeedsGroup(const AdvantageRule& rule) {
  return HasGroupCentre(rule) || rule.scale == Scale::kGroup;
}
// Whether sigma depends on every group of the step. Then the advantages that AddGroup() returns
// must still be multiplied by StepFactor() when the step is complete.
inline bool IsStepWide(const AdvantageRule& rule) {
  return rule.scale == Scale::kBatch || rule.scale == Scale::kPooled;
}
// Whether the advantages can be computed group by group, but for that factor.
inline bool IsGroupWise(const AdvantageRule& rule) {
  return rule.centre != Centre::kBatch && rule.tokens == TokenRule::kSame && !rule.min_variance &&
         !rule.duration_aware;
}

// Computes the advantages of a step, one complete group after another. Not thread-safe.
//
// Special cases:
// - A group with one finite reward has A = 0 if the rule has a group centre or a group scale. It
//   does not enter Scale::kPooled, and under a group centre it does not enter Scale::kBatch.
// - A group whose std is at most 1e-6 has exactly A = 0 if the rule has a group centre or a group
//   scale.
// - A member whose reward is not finite is left out of all statistics and gets A = 0.
class AdvantageStream {
 public:
  // `batch_mean` is the mean reward of the whole step. It is needed for Centre::kBatch alone.
  explicit AdvantageStream(const AdvantageRule& rule, double batch_mean = 0)
      : rule_(rule), batch_mean_(batch_mean) {}

  // The advantages of the group's members before they are multiplied by StepFactor(), in the order
  // of `rewards`. `rewards` may contain members that are not trained (of other versions, or trained
  // before): they count in the statistics, and the caller drops their advantages.
  std::vector<double> AddGroup(absl::Span<const double> rewards);

  // The factor for the values of all AddGroup() calls, valid when the step is complete. It is 1
  // unless IsStepWide(), never negative, and 0 if the scale is at most 1e-6.
  double StepFactor() const;

  int64_t groups() const { return groups_; }
  // Groups with at least two finite rewards and a std above 1e-6. Under a group centre, only their
  // members can have an advantage.
  int64_t spread_groups() const { return spread_groups_; }
  // Groups with exactly one finite reward.
  int64_t singleton_groups() const { return singleton_groups_; }
  // Groups with at least two finite rewards and a std of at most 1e-6.
  int64_t flat_groups() const { return flat_groups_; }
  int64_t bad_rewards() const { return bad_rewards_; }  // Members whose reward is not finite.

 private:
  AdvantageRule rule_;
  double batch_mean_;
  int64_t groups_ = 0, spread_groups_ = 0, singleton_groups_ = 0, flat_groups_ = 0,
          bad_rewards_ = 0;
  // Scale::kBatch: count, mean and sum of squared deviations of the c_i, by Welford's method.
  // Scale::kPooled: `count_` is sum_g (n_g - 1), and `squares_` the numerator of sigma^2.
  int64_t count_ = 0;
  double mean_ = 0, squares_ = 0;
};

struct AdvantageResult {
  std::vector<double> advantage;  // [B], one for each sequence.
  int64_t singleton_groups = 0, flat_groups = 0, bad_rewards = 0;
};

// The advantages of a whole step. `rewards` [B] and `groups` [B] give the reward and the group id
// of each sequence. Sequences and ids may come in any order. Aborts if the sizes differ.
AdvantageResult ComputeAdvantages(const AdvantageRule& rule, absl::Span<const double> rewards,
                                  absl::Span<const int64_t> groups);

}  // namespace sluice
