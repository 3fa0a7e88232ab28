#include "common/algorithms/gae.h"

#include <numeric>

#include "common/algorithms/returns.h"
#include "common/base/splitmix.h"
#include "tests/common/algorithms/oracle.h"

namespace sluice {
namespace {

struct Estimate {
  std::vector<float> advantages, targets;
};
Estimate Gae(const GaeRule& rule, const std::vector<double>& rewards,
             const std::vector<float>& values, double bootstrap = 0) {
  Estimate out{std::vector<float>(rewards.size()), std::vector<float>(rewards.size())};
  ComputeGae(rule, rewards, values, bootstrap, absl::MakeSpan(out.advantages),
             absl::MakeSpan(out.targets));
  return out;
}

const std::vector<double> kRewards = {0, 0, 1};
const std::vector<float> kValues = {0.2f, 0.5f, 0.6f};

// The numbers of section 3.6 of the algorithm sheet.
TEST(GaeTest, TheWorkedNumbersComeOut) {
  const Estimate plain = Gae({.gamma = 1, .lam = 0.95}, kRewards, kValues);
  ExpectAllClose(plain.advantages, std::vector<double>{0.756, 0.48, 0.4}, "advantages");
  ExpectAllClose(plain.targets, std::vector<double>{0.956, 0.98, 1.0}, "targets");
  ExpectAllClose(Gae({.gamma = 0.99, .lam = 0.95}, kRewards, kValues).advantages,
                 std::vector<double>{0.737223, 0.470200, 0.4}, "discounted");

  TokenMoments moments;
  std::vector<double> white;
  for (const float a : plain.advantages) moments.Add(a);
  for (const float a : plain.advantages) white.push_back(moments.Whiten(a));
  ExpectAllClose(white, std::vector<double>{1.127910, -0.349795, -0.778115}, "whitened");
}

TEST(GaeTest, AnAnswerThatWasCutGoesOnWithTheValueOfItsEnd) {
  ExpectAllClose(Gae({.gamma = 1, .lam = 0.95}, {0, 0, 0}, kValues, 0.7).advantages,
                 std::vector<double>{0.485250, 0.195, 0.1}, "bootstrapped");
}

TEST(GaeTest, T15WithoutValuesAndDecayTheAdvantageIsTheRestOfTheReward) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SplitMix64 random(seed);
    std::vector<double> rewards(1 + random.Below(20));
    for (double& r : rewards) r = random.Uniform() - 0.5;
    const Estimate out = Gae({.gamma = 1, .lam = 1}, rewards, std::vector<float>(rewards.size()));
    for (size_t t = 0; t < rewards.size(); ++t) {
      const double rest =
          std::accumulate(rewards.begin() + static_cast<int64_t>(t), rewards.end(), 0.0);
      EXPECT_NEAR(out.advantages[t], rest, 1e-6) << seed;
      EXPECT_EQ(out.targets[t], out.advantages[t]) << seed;
    }
  }
}

TEST(GaeTest, AtLambda1TheTargetsAreTheReturnsWhateverTheValues) {
  SplitMix64 random(3);
  std::vector<double> rewards(9), returns;
  std::vector<float> values;
  for (double& r : rewards) r = random.Uniform(), values.push_back(float(random.Uniform()));
  returns = rewards;
  ToReturns(0.9, absl::MakeSpan(returns));
  const Estimate out = Gae({.gamma = 0.9, .lam = 1}, rewards, values);
  for (size_t t = 0; t < rewards.size(); ++t) EXPECT_NEAR(out.targets[t], returns[t], 1e-6);
}

// VAPO (arXiv 2504.05118).
TEST(GaeTest, AdvantagesAndTargetsMayHaveLambdasOfTheirOwn) {
  const GaeRule rule{.gamma = 1, .lam = 0.5, .lam_value = 1.0};
  const Estimate both = Gae(rule, kRewards, kValues);
  EXPECT_EQ(both.advantages, Gae({.gamma = 1, .lam = 0.5}, kRewards, kValues).advantages);
  EXPECT_EQ(both.targets, Gae({.gamma = 1, .lam = 1}, kRewards, kValues).targets);
}

TEST(GaeTest, TheLambdaOfAdvantagesMayFollowTheLength) {
  const GaeRule rule{.gamma = 1, .lam = 0.95, .lam_alpha = 0.05};
  EXPECT_DOUBLE_EQ(PolicyLambda(rule, 100), 1 - 1 / 5.0);
  EXPECT_DOUBLE_EQ(PolicyLambda(rule, 20), 0);
  EXPECT_DOUBLE_EQ(PolicyLambda(rule, 3), 0) << "never below 0";
  EXPECT_DOUBLE_EQ(PolicyLambda({.lam = 0.9}, 100), 0.9);

  const GaeRule long_rule{.gamma = 1, .lam = 0.95, .lam_alpha = 2};
  const Estimate out = Gae(long_rule, kRewards, kValues);
  const double lam = 1 - 1 / 6.0;
  EXPECT_EQ(out.advantages, Gae({.gamma = 1, .lam = lam}, kRewards, kValues).advantages);
  EXPECT_EQ(out.targets, Gae({.gamma = 1, .lam = 0.95}, kRewards, kValues).targets);
}

TEST(GaeTest, NoTokensHaveNoAdvantages) { EXPECT_TRUE(Gae({}, {}, {}, 1).advantages.empty()); }

}  // namespace
}  // namespace sluice
