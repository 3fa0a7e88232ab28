#include "common/algorithms/kl_control.h"

#include "tests/common/algorithms/oracle.h"

namespace sluice {
namespace {

// The numbers of section 2.5 of the algorithm sheet.
TEST(KlControlTest, TheWorkedNumbersComeOut) {
  const KlControl control{.target = 0.1, .horizon = 10000};
  EXPECT_NEAR(AdaptKl(control, 0.001, 0.15, 512), 0.00101024, 1e-12);
}

TEST(KlControlTest, ItRisesAboveTheTargetAndFallsBelowByAtMostAFifth) {
  const KlControl control{.target = 0.1, .horizon = 100};
  EXPECT_DOUBLE_EQ(AdaptKl(control, 1, 0.1, 100), 1);
  EXPECT_DOUBLE_EQ(AdaptKl(control, 1, 0.11, 100), 1.1);
  EXPECT_DOUBLE_EQ(AdaptKl(control, 1, 5, 100), 1.2);
  EXPECT_DOUBLE_EQ(AdaptKl(control, 1, 0.09, 50), 0.95);
  // k1 is an estimate, and may be negative.
  EXPECT_DOUBLE_EQ(AdaptKl(control, 1, -5, 100), 0.8);
}

TEST(KlControlTest, WithoutATargetTheCoefficientStays) {
  EXPECT_EQ(AdaptKl({}, 0.001, 5, 512), 0.001);
}

}  // namespace
}  // namespace sluice
