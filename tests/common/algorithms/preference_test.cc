#include "common/algorithms/preference.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice {
namespace {

TEST(PreferenceTest, TheSheetsExampleOfAPair) {
  // Sums of log-probs: chosen -12 under the policy and -13 under the reference, rejected -15 and
  // -14.5.
  const double margin = (-12.0 - -13.0) - (-15.0 - -14.5);
  EXPECT_DOUBLE_EQ(margin, 1.5);
  const PairLoss pair = DpoLoss(margin, 0.1, 0);
  EXPECT_NEAR(pair.loss, 0.620957, 5e-7);
  EXPECT_NEAR(pair.slope, -0.046257, 5e-7);
}

TEST(PreferenceTest, TheSlopeIsTheDerivative) {
  for (const double smoothing : {0.0, 0.1, 0.3}) {
    for (double margin = -30; margin <= 30; margin += 1.7) {
      const double h = 1e-5;
      const double numeric =
          (DpoLoss(margin + h, 0.4, smoothing).loss - DpoLoss(margin - h, 0.4, smoothing).loss) /
          (2 * h);
      EXPECT_NEAR(DpoLoss(margin, 0.4, smoothing).slope, numeric, 1e-9) << margin;
    }
  }
}

TEST(PreferenceTest, WithoutAPreferenceTheLossIsThatOfACoin) {
  for (const double smoothing : {0.0, 0.2})
    EXPECT_DOUBLE_EQ(DpoLoss(0, 0.1, smoothing).loss, std::log(2));
}

TEST(PreferenceTest, SmoothingHasItsLeastLossWhereThePolicyIsAsSureAsTheLabels) {
  const double beta = 0.5, smoothing = 0.1;
  const double sure = std::log((1 - smoothing) / smoothing) / beta;
  EXPECT_NEAR(DpoLoss(sure, beta, smoothing).slope, 0, 1e-15);
}

TEST(PreferenceTest, LargeMarginsGiveNoInfinity) {
  EXPECT_DOUBLE_EQ(DpoLoss(-1e6, 0.1, 0).loss, 1e5);
  EXPECT_DOUBLE_EQ(DpoLoss(-1e6, 0.1, 0).slope, -0.1);
  EXPECT_EQ(DpoLoss(1e6, 0.1, 0).loss, 0);
}

}  // namespace
}  // namespace sluice
