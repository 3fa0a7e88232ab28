#include "services/trainer/core/canary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/base/splitmix.h"

namespace sluice::trainer {
namespace {

using testing::HasSubstr;
using VerdictKind = CanaryVerdict::Kind;

const CanaryRules kCanaryRules{.tokens = 100, .wait = absl::Seconds(10), .max_gap = 0.5};

// What a version that is in order shows when all is known of it.
CanaryEvidence GoodEvidence() {
  return {.served = absl::Seconds(1),
          .idle = absl::ZeroDuration(),
          .health = {.rows = 100, .bad_rows = 0, .gap_tokens = 100, .gap = 0.02, .probed = true},
          .canary = {},
          .others = {}};
}

TEST(CanaryTest, AVersionIsPromotedWhenAllIsKnownAndNothingIsBad) {
  const CanaryVerdict verdict = JudgeCanary(kCanaryRules, GoodEvidence());
  EXPECT_EQ(verdict.kind, VerdictKind::kPromote);
  EXPECT_EQ(verdict.not_known, "");
  EXPECT_THAT(verdict.reason, HasSubstr("100 of 100 rows"));
}

TEST(CanaryTest, AVersionThatTheCanaryHasNotLoadedWaits) {
  CanaryEvidence evidence = GoodEvidence();
  evidence.served.reset();
  EXPECT_EQ(JudgeCanary(kCanaryRules, evidence).kind, VerdictKind::kWait);
}

TEST(CanaryTest, ItWaitsForWhatIsMissingAndSaysWhat) {
  CanaryEvidence few = GoodEvidence();
  few.health.rows = 99;
  EXPECT_EQ(JudgeCanary(kCanaryRules, few).kind, VerdictKind::kWait);
  EXPECT_THAT(JudgeCanary(kCanaryRules, few).reason, HasSubstr("99 of 100 tokens"));

  CanaryEvidence probing = GoodEvidence();
  probing.health.probed = false;
  EXPECT_EQ(JudgeCanary(kCanaryRules, probing).kind, VerdictKind::kWait);

  CanaryRules rewards = kCanaryRules;
  rewards.max_reward_drop = 0.5;
  EXPECT_EQ(JudgeCanary(rewards, GoodEvidence()).kind, VerdictKind::kWait);
  EXPECT_THAT(JudgeCanary(rewards, GoodEvidence()).reason, HasSubstr("the rewards of 0 groups"));
}

TEST(CanaryTest, AfterTheWaitItIsPromotedWithoutWhatIsNotKnownAndThatIsSaid) {
  CanaryEvidence evidence = GoodEvidence();
  evidence.health = {.rows = 3, .bad_rows = 0, .gap_tokens = 0, .gap = 0, .probed = true};
  evidence.served = kCanaryRules.wait - absl::Milliseconds(1);
  EXPECT_EQ(JudgeCanary(kCanaryRules, evidence).kind, VerdictKind::kWait);

  evidence.served = kCanaryRules.wait;
  const CanaryVerdict verdict = JudgeCanary(kCanaryRules, evidence);
  EXPECT_EQ(verdict.kind, VerdictKind::kPromote);
  EXPECT_THAT(verdict.not_known, HasSubstr("3 of 100 tokens"));
  EXPECT_THAT(verdict.not_known, HasSubstr("0 tokens of earlier answers"));
}

TEST(CanaryTest, ItDoesNotWaitForWhatCannotComeAnyMore) {
  CanaryEvidence evidence = GoodEvidence();
  evidence.health.gap_tokens = 0;
  EXPECT_EQ(JudgeCanary(kCanaryRules, evidence).kind, VerdictKind::kPromote)
      << "what it had no answers for when the trial began";
  EXPECT_THAT(JudgeCanary(kCanaryRules, evidence).not_known, HasSubstr("0 tokens of earlier"));

  evidence = GoodEvidence();
  evidence.health.rows = 99;
  evidence.idle = absl::Milliseconds(1999);
  EXPECT_EQ(JudgeCanary(kCanaryRules, evidence).kind, VerdictKind::kWait);
  evidence.idle = absl::Seconds(2);
  EXPECT_EQ(JudgeCanary(kCanaryRules, evidence).kind, VerdictKind::kPromote);
  EXPECT_THAT(JudgeCanary(kCanaryRules, evidence).not_known, HasSubstr("99 of 100 tokens"));
  evidence.health.rows = evidence.health.gap_tokens = 0;
  EXPECT_EQ(JudgeCanary(kCanaryRules, evidence).kind, VerdictKind::kWait)
      << "nothing at all is known";
}

TEST(CanaryTest, RowsThatAreNotFiniteWithdrawAtOnceButNotASingleOne) {
  CanaryEvidence evidence = GoodEvidence();
  evidence.health = {.rows = 2, .bad_rows = 2, .gap_tokens = 0, .gap = 0, .probed = false};
  EXPECT_EQ(JudgeCanary(kCanaryRules, evidence).kind, VerdictKind::kWithdraw);
  EXPECT_THAT(JudgeCanary(kCanaryRules, evidence).reason, HasSubstr("2 of 2 rows"));

  evidence.health = {.rows = 1, .bad_rows = 1, .gap_tokens = 0, .gap = 0, .probed = true};
  evidence.served = absl::Seconds(1);
  EXPECT_EQ(JudgeCanary(kCanaryRules, evidence).kind, VerdictKind::kWait);
  evidence.served = kCanaryRules.wait;
  EXPECT_EQ(JudgeCanary(kCanaryRules, evidence).kind, VerdictKind::kWithdraw)
      << "no more will be known";

  evidence = GoodEvidence();
  evidence.health.bad_rows = 1;
  EXPECT_EQ(JudgeCanary(kCanaryRules, evidence).kind, VerdictKind::kPromote);

  evidence.health.rows = 1000;
  evidence.health.bad_rows = 10;
  EXPECT_EQ(JudgeCanary(kCanaryRules, evidence).kind, VerdictKind::kPromote)
      << "1 % is within the limit";
  evidence.health.bad_rows = 11;
  EXPECT_EQ(JudgeCanary(kCanaryRules, evidence).kind, VerdictKind::kWithdraw);
}

TEST(CanaryTest, LogProbsThatMoveTooFarWithdraw) {
  CanaryEvidence evidence = GoodEvidence();
  evidence.health.gap = kCanaryRules.max_gap;
  EXPECT_EQ(JudgeCanary(kCanaryRules, evidence).kind, VerdictKind::kPromote);
  evidence.health.gap = 0.51;
  EXPECT_EQ(JudgeCanary(kCanaryRules, evidence).kind, VerdictKind::kWithdraw);
  EXPECT_THAT(JudgeCanary(kCanaryRules, evidence).reason,
              HasSubstr("weights.canary.max_gap is 0.5"));

  evidence.health.gap_tokens = 31;
  EXPECT_EQ(JudgeCanary(kCanaryRules, evidence).kind, VerdictKind::kPromote)
      << "one odd answer is no proof";
  evidence.health.gap_tokens = 100;
  evidence.health.gap = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(JudgeCanary(kCanaryRules, evidence).kind, VerdictKind::kWithdraw);
}

TEST(CanaryTest, RewardsMatterOnlyIfTheJobSaysSoAndOnlyIfChanceDoesNotExplainThem) {
  CanaryRules rules = kCanaryRules;
  CanaryEvidence evidence = GoodEvidence();
  evidence.canary = {.groups = 64, .mean = 0.2, .variance = 0.04};
  evidence.others = {.groups = 64, .mean = 0.8, .variance = 0.04};
  EXPECT_EQ(JudgeCanary(rules, evidence).kind, VerdictKind::kPromote);

  rules.max_reward_drop = 1;
  EXPECT_EQ(JudgeCanary(rules, evidence).kind, VerdictKind::kWithdraw);
  EXPECT_THAT(JudgeCanary(rules, evidence).reason, HasSubstr("64 groups is 0.2"));

  rules.max_reward_drop = 4;  // The drop is 3 standard deviations.
  EXPECT_EQ(JudgeCanary(rules, evidence).kind, VerdictKind::kPromote);

  rules.max_reward_drop = 0;
  evidence.canary.groups = evidence.others.groups = 8;
  evidence.canary.mean = 0.6;  // Three standard errors are 0.3.
  EXPECT_EQ(JudgeCanary(rules, evidence).kind, VerdictKind::kPromote);
  evidence.canary.mean = 1;
  EXPECT_EQ(JudgeCanary(rules, evidence).kind, VerdictKind::kPromote) << "better is never bad";
}

// Two versions that give the same rewards are told apart by chance alone, which is rare.
TEST(CanaryTest, EqualRewardsAreSeldomTakenForADrop) {
  CanaryRules rules = kCanaryRules;
  rules.max_reward_drop = 0;
  int withdrawn = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SplitMix64 random(seed);
    GroupRewards rewards;
    for (int i = 0; i < 32; ++i) {
      rewards.Add(3, 3, random.Uniform());
      rewards.Add(4, 4, random.Uniform());
    }
    CanaryEvidence evidence = GoodEvidence();
    evidence.canary = rewards.SampleOf(4);
    evidence.others = rewards.SampleBefore(4);
    withdrawn += JudgeCanary(rules, evidence).kind == VerdictKind::kWithdraw;
  }
  EXPECT_LT(withdrawn, 10);
}

TEST(GroupRewardsTest, GroupsOfBothKindsOfVersionsAreLeftOut) {
  GroupRewards rewards;
  rewards.Add(3, 3, 1);
  rewards.Add(2, 3, 3);
  rewards.Add(3, 4, 100);
  rewards.Add(4, 4, 10);
  rewards.Add(5, 5, 1000);

  const RewardSample before = rewards.SampleBefore(4), of = rewards.SampleOf(4);
  EXPECT_EQ(before.groups, 2);
  EXPECT_DOUBLE_EQ(before.mean, 2);
  EXPECT_DOUBLE_EQ(before.variance, 2);
  EXPECT_EQ(of.groups, 1);
  EXPECT_DOUBLE_EQ(of.mean, 10);
  EXPECT_DOUBLE_EQ(of.variance, 0);
}

TEST(GroupRewardsTest, TheNewestGroupsCount) {
  GroupRewards rewards;
  for (size_t i = 0; i < GroupRewards::kMost; ++i) rewards.Add(1, 1, 5);
  for (size_t i = 0; i < GroupRewards::kMost; ++i) rewards.Add(1, 1, 7);
  EXPECT_EQ(rewards.SampleOf(1).groups, static_cast<int64_t>(GroupRewards::kMost));
  EXPECT_DOUBLE_EQ(rewards.SampleOf(1).mean, 7);
}

}  // namespace
}  // namespace sluice::trainer
