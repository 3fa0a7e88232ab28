#include "common/algorithms/min_variance.h"

#include "common/base/splitmix.h"
#include "tests/common/algorithms/oracle.h"

namespace sluice {
namespace {

const std::vector<double> kGroupRewards = {1, 0, 0.5, 1};

std::vector<double> Powers(const std::vector<double>& weight, const std::vector<double>& norm) {
  std::vector<double> power;
  for (size_t i = 0; i < weight.size(); ++i) power.push_back(weight[i] * weight[i] * norm[i]);
  return power;
}

double SecondMoment(const std::vector<double>& rewards, const std::vector<double>& power,
                    double baseline) {
  double sum = 0;
  for (size_t i = 0; i < rewards.size(); ++i)
    sum += power[i] * (rewards[i] - baseline) * (rewards[i] - baseline);
  return sum;
}

TEST(MinVarianceTest, GivesTheWorkedNumbers) {
  const std::vector<double> power = Powers({2, 0.5, 1, 0.25}, {4, 1, 2, 8});
  const MinVariance group = ComputeMinVariance(kGroupRewards, power);
  ExpectClose(group.baseline, 0.933333, "baseline");
  ExpectClose(group.scale, 0.414578, "scale");
  EXPECT_FALSE(group.flat);
  std::vector<double> advantage;
  for (const double r : kGroupRewards) advantage.push_back((r - group.baseline) / group.scale);
  ExpectAllClose(advantage, std::vector<double>{0.160806, -2.251285, -1.045239, 0.160806},
                 "advantage");
  ExpectClose(SecondMoment(kGroupRewards, power, group.baseline), 0.666667, "second moment");
  ExpectClose(SecondMoment(kGroupRewards, power, 0.625), 2.449219, "second moment at the mean");

  ExpectClose(ComputeMinVariance(kGroupRewards, Powers({1.5, 0.5, 1, 0.25}, {4, 1, 2, 8})).baseline,
              0.893617, "baseline of capped weights");
}

TEST(MinVarianceTest, T16TheBaselineMinimisesTheSecondMoment) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SplitMix64 random(seed);
    std::vector<double> rewards, power;
    for (int i = 0; i < 6; ++i) {
      rewards.push_back(random.Uniform());
      power.push_back(random.Uniform() * 10);
    }
    const double b = ComputeMinVariance(rewards, power).baseline;
    const double here = SecondMoment(rewards, power, b);
    EXPECT_LT(here, SecondMoment(rewards, power, b + 1e-3)) << seed;
    EXPECT_LT(here, SecondMoment(rewards, power, b - 1e-3)) << seed;
  }
}

TEST(MinVarianceTest, T16EqualPowersGiveTheMeanAndNoPowerToo) {
  ExpectClose(ComputeMinVariance(kGroupRewards, {3, 3, 3, 3}).baseline, 0.625, "equal");
  ExpectClose(ComputeMinVariance(kGroupRewards, {0, 0, 0, 0}).baseline, 0.625, "none");
}

TEST(MinVarianceTest, T15AConstantOnAllRewardsChangesNoAdvantage) {
  const std::vector<double> power = {16, 0.25, 2, 0.5};
  const MinVariance a = ComputeMinVariance(kGroupRewards, power),
                    b = ComputeMinVariance({11, 10, 10.5, 11}, power);
  for (const double r : kGroupRewards) {
    EXPECT_NEAR((r - a.baseline) / a.scale, (r + 10 - b.baseline) / b.scale, 1e-9);
  }
}

TEST(MinVarianceTest, OneMemberAndEqualRewardsAreFlatAndABadRewardIsLeftOut) {
  EXPECT_TRUE(ComputeMinVariance({1}, {2}).flat);
  EXPECT_TRUE(ComputeMinVariance({}, {}).flat);
  EXPECT_TRUE(ComputeMinVariance({0.3, 0.3, 0.3}, {1, 2, 3}).flat);
  const MinVariance with = ComputeMinVariance({1, std::nan(""), 0}, {1, 5, 2}),
                    without = ComputeMinVariance({1, 0}, {1, 2});
  EXPECT_EQ(with.baseline, without.baseline);
  EXPECT_EQ(with.scale, without.scale);
}

}  // namespace
}  // namespace sluice
