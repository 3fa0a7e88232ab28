#include "common/algorithms/advantage.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "common/algorithms/shaping.h"
#include "common/base/splitmix.h"
#include "tests/common/algorithms/advantage_oracles.h"

namespace sluice {
namespace {

using testing::Each;

std::vector<double> AdvantagesOf(AdvantageRule rule, std::vector<double> rewards,
                                 std::vector<int64_t> groups) {
  return ComputeAdvantages(rule, rewards, groups).advantage;
}

TEST(AdvantageTest, EveryRowHasAnOracle) {
  std::vector<std::string> tested;
  for (const AdvantageOracle& oracle : AdvantageOracles()) tested.push_back(oracle.kind);
  ExpectOracleForEveryRow(AdvantageRows(), tested);
}

TEST(AdvantageTest, RowsGiveTheWorkedNumbers) {
  for (const AdvantageOracle& oracle : AdvantageOracles()) {
    ExpectAllClose(
        AdvantagesOf(FindRow(AdvantageRows(), oracle.kind)->value, kRewardsOfPAndQ, kGroupsOfPAndQ),
        oracle.wanted, oracle.kind);
  }
}

TEST(AdvantageTest, CentreAndScaleCombineFreely) {
  ExpectAllClose(AdvantagesOf({Centre::kNone, Scale::kNone}, kRewardsOfPAndQ, kGroupsOfPAndQ),
                 kRewardsOfPAndQ, "raw");
  const double mean = 3.5 / 6;
  std::vector<double> centred;
  for (double r : kRewardsOfPAndQ) centred.push_back(r - mean);
  ExpectAllClose(AdvantagesOf({Centre::kBatch, Scale::kNone}, kRewardsOfPAndQ, kGroupsOfPAndQ),
                 centred, "batch centre");

  double squares = 0;
  for (double c : centred) squares += c * c;
  // The std of six rewards divides by five, and 1e-6 is added to it.
  for (double& c : centred) c /= std::sqrt(squares / 5) + 1e-6;

  ExpectAllClose(AdvantagesOf({Centre::kBatch, Scale::kBatch}, kRewardsOfPAndQ, kGroupsOfPAndQ),
                 centred, "batch centre, batch scale");
}

TEST(AdvantageTest, T15SumIsZeroOverAGroupAndAShiftOfRewardsChangesNothing) {
  for (const Row<AdvantageRule>& row : AdvantageRows()) {
    if (!HasGroupCentre(row.value) || row.value.scale == Scale::kGroupMean) continue;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(testing::Message() << row.name << " seed " << seed);
      SplitMix64 random(seed);
      std::vector<double> rewards, shifted;
      std::vector<int64_t> groups;

      for (int i = 0; i < 24; ++i) {
        groups.push_back(static_cast<int64_t>(random.Below(4)));
        rewards.push_back(random.Uniform());
        shifted.push_back(rewards.back() + 5);
      }

      const std::vector<double> a = AdvantagesOf(row.value, rewards, groups),
                                b = AdvantagesOf(row.value, shifted, groups);
      std::vector<double> sums(4, 0.0);
      for (int i = 0; i < 24; ++i) {
        sums[groups[i]] += a[i];
        EXPECT_NEAR(a[i], b[i], 1e-10);
      }
      for (double sum : sums) EXPECT_NEAR(sum, 0, 1e-10);
    }
  }
}

TEST(AdvantageTest, T15RlooIsDrGrpoTimesNOverNMinusOne) {
  const std::vector<double> rloo =
      AdvantagesOf({Centre::kGroupLoo, Scale::kNone}, {0.3, 0.9, 0.1}, {0, 0, 0});
  const std::vector<double> dr =
      AdvantagesOf({Centre::kGroup, Scale::kNone}, {0.3, 0.9, 0.1}, {0, 0, 0});
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(rloo[i], 1.5 * dr[i], 1e-12);
}

TEST(AdvantageTest, T15GrpoDoesNotDependOnTheUnitOfRewards) {
  const std::vector<double> a = AdvantagesOf({Centre::kGroup, Scale::kGroup}, {1, 2, 4}, {0, 0, 0});
  const std::vector<double> b =
      AdvantagesOf({Centre::kGroup, Scale::kGroup}, {100, 200, 400}, {0, 0, 0});
  // They differ a little, because 1e-6 is added to both standard deviations.
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(a[i], b[i], 2e-6);
}

TEST(AdvantageTest, MaxRlTreatsANegativeRewardAsBadAndAMeanOfZeroAsNoSignal) {
  const AdvantageRule maxrl = FindRow(AdvantageRows(), "maxrl")->value;
  const AdvantageResult r = ComputeAdvantages(maxrl, {-1, 1, 0, 0, 0}, {0, 0, 0, 1, 1});
  EXPECT_EQ(r.bad_rewards, 1);
  ExpectAllClose(r.advantage, std::vector<double>{0, 1, -1, 0, 0}, "maxrl");
}

TEST(AdvantageTest, T11EqualRewardsGiveExactlyZero) {
  for (const Row<AdvantageRule>& row : AdvantageRows()) {
    if (!NeedsGroup(row.value)) continue;
    const AdvantageResult r = ComputeAdvantages(row.value, {0.1, 0.1, 0.1}, {0, 0, 0});
    EXPECT_THAT(r.advantage, Each(0.0)) << row.name;
    EXPECT_EQ(r.flat_groups, 1) << row.name;
  }
}

TEST(AdvantageTest, T11AGroupOfOneGetsZeroAndEntersNoStatistic) {
  for (const Row<AdvantageRule>& row : AdvantageRows()) {
    if (!NeedsGroup(row.value)) continue;
    std::vector<double> rewards = kRewardsOfPAndQ;
    std::vector<int64_t> groups = kGroupsOfPAndQ;
    rewards.push_back(9);
    groups.push_back(5);
    const AdvantageResult r = ComputeAdvantages(row.value, rewards, groups);

    EXPECT_EQ(r.advantage.back(), 0) << row.name;
    EXPECT_EQ(r.singleton_groups, 1) << row.name;

    const std::vector<double> without = AdvantagesOf(row.value, kRewardsOfPAndQ, kGroupsOfPAndQ);
    for (size_t i = 0; i < without.size(); ++i) EXPECT_EQ(r.advantage[i], without[i]) << row.name;
  }
}

TEST(AdvantageTest, ARewardThatIsNotFiniteIsLeftOutAndCounted) {
  for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (const Row<AdvantageRule>& row : AdvantageRows()) {
      std::vector<double> rewards = kRewardsOfPAndQ;
      std::vector<int64_t> groups = kGroupsOfPAndQ;
      rewards.insert(rewards.begin(), bad);
      groups.insert(groups.begin(), 7);
      const AdvantageResult r = ComputeAdvantages(row.value, rewards, groups);
      const std::vector<double> without = AdvantagesOf(row.value, kRewardsOfPAndQ, kGroupsOfPAndQ);

      EXPECT_EQ(r.advantage[0], 0) << row.name;
      EXPECT_EQ(r.bad_rewards, 1) << row.name;

      for (size_t i = 0; i < without.size(); ++i)
        EXPECT_EQ(r.advantage[i + 1], without[i]) << row.name;
    }
  }
}

TEST(AdvantageTest, NoRewardsGiveNoAdvantages) {
  for (const Row<AdvantageRule>& row : AdvantageRows())
    EXPECT_TRUE(AdvantagesOf(row.value, {}, {}).empty());
}

TEST(AdvantageTest, GroupsInAnyOrderGiveTheSameStep) {
  for (const Row<AdvantageRule>& row : AdvantageRows()) {
    const std::vector<double> a = AdvantagesOf(row.value, kRewardsOfPAndQ, kGroupsOfPAndQ);
    const std::vector<double> b = AdvantagesOf(row.value, {0, 1, 1, 0, 0.5, 1}, {3, 3, 7, 7, 7, 7});
    for (int i = 0; i < 4; ++i) EXPECT_EQ(a[i], b[i + 2]) << row.name;
    for (int i = 0; i < 2; ++i) EXPECT_EQ(a[i + 4], b[i]) << row.name;
  }
}

TEST(AdvantageTest, T20AStreamOfGroupsTimesItsFactorIsTheWholeStep) {
  for (const Row<AdvantageRule>& row : AdvantageRows()) {
    if (row.value.centre == Centre::kBatch) continue;  // It needs the mean of the step first.
    AdvantageStream stream(row.value);
    std::vector<double> streamed = stream.AddGroup({1, 0, 0.5, 1});
    const std::vector<double> second = stream.AddGroup({0, 1});
    streamed.insert(streamed.end(), second.begin(), second.end());

    for (double& a : streamed) a *= stream.StepFactor();
    ExpectAllClose(streamed, AdvantagesOf(row.value, kRewardsOfPAndQ, kGroupsOfPAndQ),
                   std::string(row.name));
    EXPECT_EQ(stream.StepFactor() == 1, !IsStepWide(row.value)) << row.name;
  }
}

TEST(ShapingTest, EveryTruncationRowIsKnownHere) {
  ExpectOracleForEveryRow(TruncationRows(), {"keep", "filter", "penalty"});
}

TEST(ShapingTest, SoftOverlongFallsLinearlyThroughTheBuffer) {
  EXPECT_EQ(SoftOverlong(16000, 20480, 4096), 0);
  EXPECT_EQ(SoftOverlong(16384, 20480, 4096), 0);
  EXPECT_EQ(SoftOverlong(18432, 20480, 4096), -0.5);
  EXPECT_EQ(SoftOverlong(20480, 20480, 4096), -1);
  EXPECT_EQ(SoftOverlong(30000, 20480, 4096), -1);
  EXPECT_EQ(SoftOverlong(18432, 20480, 4096, 0.5), -0.25);
  EXPECT_EQ(SoftOverlong(20480, 20480, 0), 0);
  EXPECT_EQ(DefaultOverlongBuffer(20480), 4096);
}

TEST(ShapingTest, OnlyGroupsWithASpreadCarryASignal) {
  EXPECT_EQ(SignalOf({1, 0, 0.5, 1}), GroupSignal::kSignal);
  EXPECT_EQ(SignalOf({1, 1, 1, 1}), GroupSignal::kAllOne);
  EXPECT_EQ(SignalOf({0, 0}), GroupSignal::kAllZero);
  EXPECT_EQ(SignalOf({0.3, 0.3, 0.3}), GroupSignal::kAllEqual);
  EXPECT_EQ(SignalOf({1}), GroupSignal::kSingle);
  EXPECT_EQ(SignalOf({}), GroupSignal::kSingle);
}

}  // namespace
}  // namespace sluice
