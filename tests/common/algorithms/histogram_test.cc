#include "common/algorithms/histogram.h"

#include <cmath>

#include "common/base/splitmix.h"
#include "tests/common/algorithms/oracle.h"
#include "tests/common/algorithms/slow/statistics.h"

namespace sluice {
namespace {

TEST(HistogramTest, QuantilesAreWithinABinOfTheSortedValuesAfterAMerge) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SplitMix64 random(seed);
    std::vector<double> logs;
    LogRatioHistogram parts[3], whole;
    // Log-ratios of a batch lie close together, and a few are far away.
    const int count = seed % 2 == 0 ? 3000 : 7;
    for (int i = 0; i < count; ++i) {
      logs.push_back((random.Uniform() - 0.5) * (i % 100 == 0 ? 10 : 0.3));
      parts[i % 3].Add(logs.back());
    }
    for (const LogRatioHistogram& part : parts) whole.Merge(part);
    EXPECT_EQ(whole.count(), count);
    for (const double q : {0.0, 0.01, 0.05, 0.5, 0.95, 0.99, 1.0})
      EXPECT_NEAR(std::log(whole.Quantile(q)), slow::Quantile(logs, q), 1.0 / 128)
          << seed << " " << q;
  }
}

TEST(HistogramTest, FewValuesThatLieFarApartGiveTheWorkedNumbers) {
  const F1 f;
  LogRatioHistogram rho;
  for (int t = 0; t < 5; ++t) rho.Add(double{f.theta[t]} - f.behav[t]);
  const std::pair<double, double> wanted[] = {
      {0.01, 0.822012}, {0.05, 0.835270}, {0.5, 1.221403}, {0.95, 1.323130}, {0.99, 1.344470}};
  for (const auto& [q, value] : wanted)
    EXPECT_NEAR(std::log(rho.Quantile(q)), std::log(value), 1.0 / 128) << q;
}

TEST(HistogramTest, ExtremesAreExactEvenOutsideOfTheBins) {
  LogRatioHistogram histogram;
  for (const double log : {-12.0, 0.0, 30.0}) histogram.Add(log);
  EXPECT_DOUBLE_EQ(histogram.Quantile(0), std::exp(-12.0));
  EXPECT_DOUBLE_EQ(histogram.Quantile(1), std::exp(30.0));
  EXPECT_NEAR(std::log(histogram.Quantile(0.5)), 0, 1.0 / 128);
}

TEST(HistogramTest, WithoutValuesTheRatioIsOne) { EXPECT_EQ(LogRatioHistogram().Quantile(0.5), 1); }

}  // namespace
}  // namespace sluice
