#include "common/algorithms/returns.h"

#include <numeric>

#include "common/base/splitmix.h"
#include "tests/common/algorithms/oracle.h"

namespace sluice {
namespace {

std::vector<double> Whitened(const std::vector<double>& values) {
  TokenMoments moments;
  for (const double v : values) moments.Add(v);
  std::vector<double> out;
  for (const double v : values) out.push_back(moments.Whiten(v));
  return out;
}

TEST(ReturnsTest, ReinforcePlusPlusGivesTheWorkedNumbers) {
  // Rewards (1, 0) at the last tokens, less 0.1 times the log-ratio of prox to ref.
  const F1 f;
  std::vector<double> first, second;
  for (int t = 0; t < 5; ++t)
    (t < 3 ? first : second).push_back(-0.1 * (double{f.prox[t]} - f.ref[t]));
  first.back() += 1;
  ToReturns(1, absl::MakeSpan(first));
  ToReturns(1, absl::MakeSpan(second));
  ExpectAllClose(first, std::vector<double>{1.05, 1.03, 1.01}, "returns");
  ExpectAllClose(second, std::vector<double>{-0.03, -0.02}, "returns");
  first.insert(first.end(), second.begin(), second.end());
  ExpectAllClose(Whitened(first),
                 std::vector<double>{0.764665, 0.730064, 0.695464, -1.103747, -1.086447},
                 "whitened");
}

TEST(ReturnsTest, ReinforcePlusPlusBaselineGivesTheWorkedNumbers) {
  ExpectAllClose(Whitened({0.375, 0.375, -0.625, -0.125, 0.375}),
                 std::vector<double>{0.670820, 0.670820, -1.565248, -0.447214, 0.670820},
                 "whitened");
}

TEST(ReturnsTest, ATokenHasWhatItEarnedAndTheLastOneTheRest) {
  const std::vector<uint64_t> positions = {3, 4, 7, 8};
  EXPECT_EQ(PlaceRewards(1, {}, positions), (std::vector<double>{0, 0, 0, 1}));
  EXPECT_EQ(PlaceRewards(1, {{4, 0.25}, {8, 0.5}}, positions),
            (std::vector<double>{0, 0.25, 0, 0.75}));
  // Tokens 5 and 10 are not trained: the last trained one before them has led there. Token 2 comes
  // before all of them, so that nobody has it.
  EXPECT_EQ(PlaceRewards(1, {{2, 0.125}, {5, 0.25}, {10, 0.5}}, positions),
            (std::vector<double>{0, 0.25, 0, 0.625}));
}

TEST(ReturnsTest, TheWholeRewardIsTheReturnOfTheFirstTokenWhoeverHasEarnedIt) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SplitMix64 random(seed);
    std::vector<uint64_t> positions;
    std::vector<TokenReward> earned;
    for (uint64_t t = 1; t < 40; ++t) {
      if (positions.empty() || random.Below(3) > 0) positions.push_back(t);
      if (random.Below(4) == 0) earned.push_back({t, 2 * random.Uniform() - 1});
    }
    const double reward = random.Uniform();
    std::vector<double> rewards = PlaceRewards(reward, earned, positions);
    ToReturns(1, absl::MakeSpan(rewards));
    EXPECT_NEAR(rewards.front(), reward, 1e-12) << seed;
  }
}

TEST(ReturnsTest, ADiscountFallsPerToken) {
  std::vector<double> rewards = {0, 0, 1};
  ToReturns(0.5, absl::MakeSpan(rewards));
  EXPECT_EQ(rewards, (std::vector<double>{0.25, 0.5, 1}));
  std::vector<double> none;
  ToReturns(0.5, absl::MakeSpan(none));
  EXPECT_TRUE(none.empty());
}

TEST(ReturnsTest, WhitenedTokensHaveMeanZeroAndOneTokenHasZero) {
  EXPECT_EQ(Whitened({7}), std::vector<double>{0});
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SplitMix64 random(seed);
    std::vector<double> values;
    for (int i = 0; i < 100; ++i) values.push_back(1000 + random.Uniform());
    const std::vector<double> white = Whitened(values);
    EXPECT_NEAR(std::accumulate(white.begin(), white.end(), 0.0), 0, 1e-6);
    double squares = 0;
    for (const double w : white) squares += w * w;
    EXPECT_NEAR(squares / 99, 1, 1e-5);
  }
}

}  // namespace
}  // namespace sluice
