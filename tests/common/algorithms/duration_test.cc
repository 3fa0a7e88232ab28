#include "common/algorithms/duration.h"

#include <limits>
#include <numeric>

#include "common/base/splitmix.h"
#include "tests/common/algorithms/oracle.h"

namespace sluice {
namespace {

TEST(DurationTest, TheFactorsAreTheWorkedNumbers) {
  ExpectAllClose(DurationFactors({2, 6, 1}), std::vector<double>{0.666667, 2.0, 0.333333},
                 "factors");
  EXPECT_EQ(MeanDuration({2, 6, 1}), 3);
}

TEST(DurationTest, ATurnOfUnknownTimeIsLeftAsItIsAndDoesNotCount) {
  const double kNan = std::nan(""), kInf = std::numeric_limits<double>::infinity();
  ExpectAllClose(DurationFactors({2, 0, 6, -3, kNan, 1, kInf}),
                 std::vector<double>{0.666667, 1, 2.0, 1, 1, 0.333333, 1}, "factors");
  EXPECT_EQ(DurationFactors({0, kNan}), (std::vector<double>{1, 1}));
  EXPECT_EQ(MeanDuration({0, kNan}), 0);
  EXPECT_TRUE(DurationFactors({}).empty());
}

TEST(DurationTest, NoFactorIsAboveTen) {
  std::vector<double> seconds(99, 1.0);
  seconds.push_back(1000);
  EXPECT_EQ(DurationFactors(seconds).back(), 10);
}

TEST(DurationTest, FactorsBelowTheCapHaveMeanOneInAnyUnit) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SplitMix64 random(seed);
    std::vector<double> seconds, milliseconds;
    for (uint64_t i = 0; i < 1 + random.Below(30); ++i) {
      seconds.push_back(1 + 8 * random.Uniform());
      milliseconds.push_back(1000 * seconds.back());
    }
    const std::vector<double> factors = DurationFactors(seconds);
    EXPECT_NEAR(std::accumulate(factors.begin(), factors.end(), 0.0),
                static_cast<double>(factors.size()), 1e-9)
        << seed;
    ExpectAllClose(DurationFactors(milliseconds), factors, "unit");
  }
}

}  // namespace
}  // namespace sluice
