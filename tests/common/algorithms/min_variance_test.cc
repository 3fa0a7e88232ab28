#include "common/algorithms/min_variance.h"

#include "common/algorithms/advantage.h"
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

// The advantages as a step computes them: the row of the registry, less the baseline.
std::vector<double> AdvantagesOf(const std::vector<double>& rewards,
                                 const std::vector<double>& power) {
  AdvantageStream stream(FindRow(AdvantageRows(), "min_variance")->value);
  std::vector<double> advantages = stream.AddGroup(rewards);
  const double baseline = MinVarianceBaseline(advantages, power);
  for (double& a : advantages) a -= baseline;
  return advantages;
}

TEST(MinVarianceTest, GivesTheWorkedNumbers) {
  const std::vector<double> power = Powers({2, 0.5, 1, 0.25}, {4, 1, 2, 8});
  const double baseline = MinVarianceBaseline(kGroupRewards, power);
  ExpectClose(baseline, 0.933333, "baseline");
  ExpectClose(SecondMoment(kGroupRewards, power, baseline), 0.666667, "second moment");
  ExpectClose(SecondMoment(kGroupRewards, power, 0.625), 2.449219, "second moment at the mean");
  ExpectClose(MinVarianceBaseline(kGroupRewards, Powers({1.5, 0.5, 1, 0.25}, {4, 1, 2, 8})),
              0.893617, "baseline of capped weights");
  ExpectAllClose(AdvantagesOf(kGroupRewards, power),
                 std::vector<double>{0.160806, -2.251285, -1.045239, 0.160806}, "advantages");
}

TEST(MinVarianceTest, T16TheBaselineMinimisesTheSecondMoment) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SplitMix64 random(seed);
    std::vector<double> rewards, power;
    for (int i = 0; i < 6; ++i) {
      rewards.push_back(random.Uniform());
      power.push_back(random.Uniform() * 10);
    }
    const double b = MinVarianceBaseline(rewards, power);
    const double here = SecondMoment(rewards, power, b);
    EXPECT_LT(here, SecondMoment(rewards, power, b + 1e-3)) << seed;
    EXPECT_LT(here, SecondMoment(rewards, power, b - 1e-3)) << seed;
  }
}

TEST(MinVarianceTest, T16EqualPowersGiveTheMeanAndNoPowerToo) {
  ExpectClose(MinVarianceBaseline(kGroupRewards, {3, 3, 3, 3}), 0.625, "equal");
  ExpectClose(MinVarianceBaseline(kGroupRewards, {0, 0, 0, 0}), 0.625, "none");
  EXPECT_EQ(MinVarianceBaseline({}, {}), 0);
}

TEST(MinVarianceTest, T15AConstantOnAllRewardsChangesNoAdvantageHoweverLargeItIs) {
  const std::vector<double> power = {16, 0.25, 2, 0.5};
  const std::vector<double> a = AdvantagesOf(kGroupRewards, power),
                            b = AdvantagesOf({1e6 + 1, 1e6, 1e6 + 0.5, 1e6 + 1}, power);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-8);
}

}  // namespace
}  // namespace sluice
