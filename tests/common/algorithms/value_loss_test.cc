#include "common/algorithms/value_loss.h"

#include <limits>

#include "common/base/splitmix.h"
#include "tests/common/algorithms/oracle.h"

namespace sluice {
namespace {

constexpr double kFree = std::numeric_limits<double>::infinity();

// The numbers of section 8 of the algorithm sheet.
TEST(ValueLossTest, TheWorkedNumbersComeOut) {
  const double old_v[] = {0.2, 0.5, 0.6}, v[] = {0.5, 0.45, 0.9}, target[] = {0.7525, 0.975, 1};
  const double wanted[] = {0.062128, 0.137812, 0.020000}, slope[] = {0, -0.525, 0};
  double sum = 0;
  for (int t = 0; t < 3; ++t) {
    const LossValue loss = ValueLoss(v[t], old_v[t], target[t], 0.2);
    ExpectClose(loss.value, wanted[t], "loss");
    ExpectClose(loss.grad, slope[t], "gradient");
    sum += loss.value;
  }
  ExpectClose(sum / 3, 0.073314, "mean");
}

TEST(ValueLossTest, T05TheGradientIsThatOfFiniteDifferences) {
  constexpr double kH = 1e-6;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SplitMix64 random(seed);
    const double v = 2 * random.Uniform() - 1, old_v = v + random.Uniform() - 0.5,
                 target = 4 * random.Uniform() - 2, clip = seed % 3 == 0 ? kFree : 0.2;
    const double quotient = (ValueLoss(v + kH, old_v, target, clip).value -
                             ValueLoss(v - kH, old_v, target, clip).value) /
                            (2 * kH);
    // Near an edge of the band the quotient takes from both sides.
    if (std::abs(std::abs(v - old_v) - clip) < 2 * kH) continue;
    EXPECT_NEAR(ValueLoss(v, old_v, target, clip).grad, quotient, 1e-7) << seed;
  }
}

TEST(ValueLossTest, AValueInsideTheBandHasTheLossWithoutAClip) {
  EXPECT_EQ(ValueLoss(0.3, 0.2, 1, 0.2).value, ValueLoss(0.3, 0.2, 1, kFree).value);
  EXPECT_EQ(ValueLoss(0.3, 0.2, 1, 0.2).grad, 0.3 - 1);
  // A value that has left the band away from its target is still pulled back.
  EXPECT_EQ(ValueLoss(-0.3, 0.2, 1, 0.2).grad, -0.3 - 1);
}

TEST(ValueStatsTest, ExplainedVarianceIs1ForPerfectValuesAnd0ForTheMean) {
  const double targets[] = {0.25, 1, -0.5, 0.75};
  ValueStats perfect, mean, biased;
  for (const double g : targets) {
    perfect.Add(g, g, 0);
    mean.Add(0.375, g, 1);
    biased.Add(g + 3, g, 1);
  }
  EXPECT_DOUBLE_EQ(perfect.explained_variance().value(), 1);
  EXPECT_DOUBLE_EQ(mean.explained_variance().value(), 0);
  // A constant error leaves all variance explained; the loss shows it.
  EXPECT_NEAR(biased.explained_variance().value(), 1, 1e-12);
  EXPECT_EQ(mean.loss_sum(), 4);
  EXPECT_EQ(mean.tokens(), 4);

  ValueStats equal;
  for (int t = 0; t < 5; ++t) equal.Add(t, 0.1 + 0.2, 0);
  EXPECT_FALSE(equal.explained_variance().has_value());
  EXPECT_FALSE(ValueStats().explained_variance().has_value());
}

TEST(ValueStatsTest, PartsThatAreMergedAreTheWhole) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SplitMix64 random(seed);
    ValueStats whole, parts[3];
    for (int t = 0; t < 200; ++t) {
      const double v = 100 + random.Uniform(), g = 100 + random.Uniform();
      whole.Add(v, g, v - g);
      parts[random.Below(seed % 3 + 1)].Add(v, g, v - g);
    }
    ValueStats merged;
    for (const ValueStats& part : parts) merged.Merge(part);
    EXPECT_EQ(merged.tokens(), whole.tokens());
    EXPECT_NEAR(merged.loss_sum(), whole.loss_sum(), 1e-10);
    EXPECT_NEAR(*merged.explained_variance(), *whole.explained_variance(), 1e-9) << seed;
  }
}

TEST(ValueStatsTest, ANumberThatIsNotFiniteIsSeen) {
  ValueStats stats;
  stats.Add(1, 2, 0.5);
  EXPECT_TRUE(stats.finite());
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), kFree}) {
    ValueStats broken = stats;
    broken.Add(bad, 1, bad);
    EXPECT_FALSE(broken.finite());
    ValueStats merged = stats;
    merged.Merge(broken);
    EXPECT_FALSE(merged.finite());
  }
}

}  // namespace
}  // namespace sluice
