#include "services/rollout/core/eval/interval.h"

#include <algorithm>
#include <vector>

#include "common/base/splitmix.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

std::vector<double> Proportion(size_t ones, size_t n) {
  std::vector<double> values(n, 0.0);
  std::fill_n(values.begin(), ones, 1.0);
  return values;
}

// Computed by hand from the formula, with z = 1.959964.
TEST(IntervalTest, WilsonsIntervalsAreThoseOfTheFormula) {
  const struct {
    size_t ones, n;
    double low, high;
  } cases[] = {{5, 10, 0.236593, 0.763407},
               {10, 10, 0.722467, 1},
               {0, 10, 0, 0.277533},
               {90, 100, 0.825634, 0.944771},
               {1, 1, 0.206549, 1}};
  for (const auto& test : cases) {
    const Interval interval = WilsonInterval(Proportion(test.ones, test.n));
    EXPECT_NEAR(interval.low, test.low, 1e-6) << test.ones << " of " << test.n;
    EXPECT_NEAR(interval.high, test.high, 1e-6) << test.ones << " of " << test.n;
  }
}

// How often the interval holds the mean of the distribution that `draw` draws from.
template <typename Draw, typename Make>
double Coverage(double mean, size_t rows, Draw draw, Make make) {
  constexpr int kSamples = 1000;
  int held = 0;
  for (int seed = 0; seed < kSamples; ++seed) {
    SplitMix64 random(Mix64(seed));
    std::vector<double> values(rows);
    for (double& value : values) value = draw(&random);
    const Interval interval = make(values, seed);
    held += interval.low <= mean && mean <= interval.high;
  }
  return static_cast<double>(held) / kSamples;
}

TEST(IntervalTest, WilsonsIntervalHoldsTheTrueShareIn95PercentOfSamples) {
  for (const double p : {0.1, 0.3, 0.5, 0.9}) {
    for (const size_t rows : {20, 100, 400}) {
      const double coverage = Coverage(
          p, rows, [&](SplitMix64* random) { return random->Uniform() < p ? 1.0 : 0.0; },
          [](const std::vector<double>& values, int) { return WilsonInterval(values); });
      EXPECT_GT(coverage, 0.91) << p << " " << rows;
      EXPECT_LT(coverage, 0.985) << p << " " << rows;
    }
  }
}

TEST(IntervalTest, TheBootstrapHoldsTheTrueMeanOfSkewedRewardsInNearly95PercentOfSamples) {
  // The square of a uniform number has the mean 1/3.
  const auto draw = [](SplitMix64* random) {
    const double u = random->Uniform();
    return u * u;
  };
  const auto make = [](const std::vector<double>& values, int seed) {
    return *BootstrapInterval(values, seed);
  };
  EXPECT_GT(Coverage(1.0 / 3, 100, draw, make), 0.92);
  EXPECT_LT(Coverage(1.0 / 3, 100, draw, make), 0.975);
  EXPECT_GT(Coverage(1.0 / 3, 10, draw, make), 0.85) << "with few rows it is too narrow";
}

TEST(IntervalTest, TheBootstrapDependsOnTheValuesAndTheSeedAlone) {
  std::vector<double> values;
  SplitMix64 random(3);
  for (int i = 0; i < 50; ++i) values.push_back(random.Uniform());
  const Interval one = *BootstrapInterval(values, 1);

  std::reverse(values.begin(), values.end());
  EXPECT_EQ(BootstrapInterval(values, 1)->low, one.low);
  EXPECT_EQ(BootstrapInterval(values, 1)->high, one.high);
  EXPECT_NE(BootstrapInterval(values, 2)->low, one.low);
}

TEST(IntervalTest, ManyRowsHaveTheIntervalThatTheBootstrapComesTo) {
  std::vector<double> values;
  SplitMix64 random(5);
  for (int i = 0; i < 10'000; ++i) values.push_back(random.Uniform());
  const Interval resampled = *BootstrapInterval(values, 1);
  values.push_back(0.5);
  const Interval normal = *BootstrapInterval(values, 1);
  EXPECT_NEAR(resampled.low, normal.low, 0.0005);
  EXPECT_NEAR(resampled.high, normal.high, 0.0005);
}

TEST(IntervalTest, OneRowSaysNothingAboutOthers) {
  EXPECT_FALSE(BootstrapInterval({0.5}, 1).has_value());
  EXPECT_FALSE(BootstrapInterval({}, 1).has_value());
}

}  // namespace
}  // namespace sluice
