#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/splitmix.h"
#include "common/optim/adamw.h"
#include "common/optim/grad_norm.h"
#include "common/optim/schedule.h"

namespace sluice {
namespace {

constexpr AdamWOptions kOptions = {.weight_decay = 0.01};

TEST(AdamWTest, T25GivesTheWorkedNumbers) {
  float p = 1, m = 0, v = 0;
  const float grads[] = {0.5f, -0.2f, 0.1f};
  const double wanted_p[] = {0.899, 0.863540, 0.824738}, wanted_m[] = {0.05, 0.025, 0.0325},
               wanted_v[] = {0.00025, 0.00028975, 0.00029946};

  for (int t = 1; t <= 3; ++t) {
    AdamWStep(kOptions, t, 0.1, true, 1, 1, &grads[t - 1], &p, &m, &v);
    EXPECT_NEAR(p, wanted_p[t - 1], 2e-6);
    EXPECT_NEAR(m, wanted_m[t - 1], 2e-6);
    EXPECT_NEAR(v, wanted_v[t - 1], 1e-8);
  }
}

TEST(AdamWTest, GainsAndBiasesDoNotDecay) {
  float p = 1, m = 0, v = 0;
  const float grad = 0;
  AdamWStep(kOptions, 1, 0.1, false, 1, 1, &grad, &p, &m, &v);
  EXPECT_EQ(p, 1);
  AdamWStep(kOptions, 2, 0.1, true, 1, 1, &grad, &p, &m, &v);
  EXPECT_FLOAT_EQ(p, 0.999f);
}

TEST(AdamWTest, TheGradientScaleIsAppliedBeforeTheMoments) {
  float p1 = 1, m1 = 0, v1 = 0, p2 = 1, m2 = 0, v2 = 0;
  const float g1 = 2, g2 = 0.5f;
  AdamWStep(kOptions, 1, 0.1, true, 0.25, 1, &g1, &p1, &m1, &v1);
  AdamWStep(kOptions, 1, 0.1, true, 1, 1, &g2, &p2, &m2, &v2);

  EXPECT_EQ(p1, p2);
  EXPECT_EQ(m1, m2);
  EXPECT_EQ(v1, v2);
}

TEST(AdamWTest, SplittingATensorChangesNoBit) {
  constexpr int kN = 101;
  std::vector<float> g(kN), p(kN), m(kN, 0.0f), v(kN, 0.0f);
  SplitMix64 random(1);
  for (int i = 0; i < kN; ++i)
    g[i] = static_cast<float>(random.Uniform() - 0.5), p[i] = static_cast<float>(random.Uniform());
  std::vector<float> p2 = p, m2 = m, v2 = v;

  for (int t = 1; t <= 3; ++t) {
    AdamWStep(kOptions, t, 0.1, true, 1, kN, g.data(), p.data(), m.data(), v.data());
    AdamWStep(kOptions, t, 0.1, true, 1, 37, g.data(), p2.data(), m2.data(), v2.data());
    AdamWStep(kOptions, t, 0.1, true, 1, kN - 37, g.data() + 37, p2.data() + 37, m2.data() + 37,
              v2.data() + 37);
  }

  EXPECT_EQ(p, p2);
  EXPECT_EQ(m, m2);
  EXPECT_EQ(v, v2);
}

float FromBf16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

// Each element begins with the same bf16 moments in both.
TEST(AdamWBf16Test, TheParametersAreThoseOfTheStepInFp32AndTheMomentsANeighbour) {
  constexpr int kN = 1000;
  SplitMix64 random(3);
  std::vector<float> g(kN), p(kN), m(kN), v(kN);
  std::vector<uint16_t> m16(kN), v16(kN);
  for (int i = 0; i < kN; ++i) {
    g[i] = static_cast<float>(random.Uniform() - 0.5), p[i] = static_cast<float>(random.Uniform());
    m16[i] = static_cast<uint16_t>(random.Below(2) << 15 | (0x3d00 + random.Below(256)));
    v16[i] = static_cast<uint16_t>(0x3c00 + random.Below(256));
    m[i] = FromBf16(m16[i]), v[i] = FromBf16(v16[i]);
  }
  std::vector<float> p2 = p;
  AdamWStep(kOptions, 7, 0.1, true, 0.5, kN, g.data(), p.data(), m.data(), v.data());
  AdamWStepBf16(kOptions, 7, 0.1, true, 0.5, kN, 0, g.data(), p2.data(), m16.data(), v16.data());

  EXPECT_EQ(p, p2);
  int up = 0;
  for (int i = 0; i < kN; ++i) {
    for (const auto& [exact, rounded] : {std::pair(m[i], m16[i]), {v[i], v16[i]}}) {
      const auto below = static_cast<uint16_t>(std::bit_cast<uint32_t>(exact) >> 16);
      EXPECT_TRUE(rounded == below || rounded == below + 1) << i;
      up += rounded != below;
    }
  }
  EXPECT_NEAR(up, kN, kN / 10) << "half of them";
}

// Rounded to nearest, v would stay where it is: a step changes it by less than half of the distance
// between two numbers.
TEST(AdamWBf16Test, TheSecondMomentDecaysAsInFp32) {
  constexpr int kN = 4096, kSteps = 1000;
  const std::vector<float> g(kN, 0.0f);
  std::vector<float> p(kN, 1.0f);
  std::vector<uint16_t> m(kN, 0), v(kN, 0x3f80);  // 1
  for (int t = 1; t <= kSteps; ++t)
    AdamWStepBf16(kOptions, t, 0, false, 1, kN, 0, g.data(), p.data(), m.data(), v.data());
  double mean = 0;
  for (const uint16_t x : v) mean += FromBf16(x) / kN;
  EXPECT_NEAR(mean, std::pow(0.999, kSteps), 0.01 * std::pow(0.999, kSteps));
  for (const uint16_t x : m) EXPECT_EQ(x, 0);
}

TEST(AdamWBf16Test, SplittingATensorChangesNoBitAndEachStepHasRandomBitsOfItsOwn) {
  constexpr int kN = 101;
  SplitMix64 random(1);
  std::vector<float> g(kN), p(kN, 1.0f);
  for (float& x : g) x = static_cast<float>(random.Uniform() - 0.5);
  std::vector<uint16_t> m(kN, 0), v(kN, 0);
  std::vector<float> p2 = p, p3 = p;
  std::vector<uint16_t> m2 = m, v2 = v, m3 = m, v3 = v;
  for (int t = 1; t <= 3; ++t) {
    AdamWStepBf16(kOptions, t, 0.1, true, 1, kN, 500, g.data(), p.data(), m.data(), v.data());
    AdamWStepBf16(kOptions, t, 0.1, true, 1, 37, 500, g.data(), p2.data(), m2.data(), v2.data());
    AdamWStepBf16(kOptions, t, 0.1, true, 1, kN - 37, 537, g.data() + 37, p2.data() + 37,
                  m2.data() + 37, v2.data() + 37);
    AdamWStepBf16(kOptions, t, 0.1, true, 1, kN, 501, g.data(), p3.data(), m3.data(), v3.data());
  }
  EXPECT_EQ(p, p2);
  EXPECT_EQ(m, m2);
  EXPECT_EQ(v, v2);
  EXPECT_NE(m, m3) << "other places have other random bits";

  std::vector<uint16_t> once(kN, 0x3f80), again(kN, 0x3f80), unused(kN, 0);
  AdamWStepBf16(kOptions, 1, 0, false, 1, kN, 0, g.data(), p.data(), unused.data(), once.data());
  AdamWStepBf16(kOptions, 2, 0, false, 1, kN, 0, g.data(), p.data(), unused.data(), again.data());
  EXPECT_NE(once, again);
}

TEST(GradNormTest, ClipsByTheGlobalNorm) {
  const float g[] = {3, 4, 12};
  const double norm = std::sqrt(SumOfSquares(g, 3));
  EXPECT_DOUBLE_EQ(norm, 13);

  const double factor = ClipFactor(norm, 1.0);
  EXPECT_NEAR(factor, 0.0769231, 1e-7);
  EXPECT_NEAR(3 * factor, 0.230769, 1e-6);
  EXPECT_NEAR(12 * factor, 0.923077, 1e-6);
  EXPECT_EQ(ClipFactor(0.5, 1.0), 1);
  EXPECT_EQ(ClipFactor(1e9, 0), 1);
  EXPECT_EQ(ClipFactor(0, 1.0), 1);
}

TEST(GradNormTest, TheSumIsThatOfEveryElementAtEveryLength) {
  for (int n = 0; n < 40; ++n) {
    std::vector<float> ones(n, 2.0f);
    EXPECT_EQ(SumOfSquares(ones.data(), n), 4.0 * n);
  }

  const float bad[] = {1, std::nanf(""), 2};
  EXPECT_TRUE(std::isnan(SumOfSquares(bad, 3)));

  const float large[] = {1e30f, 1e30f};
  EXPECT_TRUE(std::isfinite(SumOfSquares(large, 2)));  // The sum is fp64, so it does not overflow.
}

TEST(ScheduleTest, EveryRowGivesTheWorkedNumbers) {
  for (const ScheduleRow& row : ScheduleRows()) {
    const Schedule s{.warmup = 4, .total = 12, .floor = 0.1, .shape = row.shape};
    EXPECT_DOUBLE_EQ(s.Factor(0), 0.25) << row.name;
    EXPECT_DOUBLE_EQ(s.Factor(3), 1) << row.name;
    EXPECT_DOUBLE_EQ(s.Factor(4), 1) << row.name;

    if (row.name == "cosine") {
      EXPECT_NEAR(s.Factor(6), 0.868198, 1e-6);
      EXPECT_NEAR(s.Factor(8), 0.55, 1e-12);
      EXPECT_NEAR(s.Factor(12), 0.1, 1e-12);
      EXPECT_NEAR(s.Factor(20), 0.1, 1e-12);
    } else if (row.name == "constant") {
      for (int step : {6, 8, 12, 20}) EXPECT_EQ(s.Factor(step), 1);
    } else {
      ADD_FAILURE() << "no oracle for " << row.name;
    }
  }

  EXPECT_TRUE(FindSchedule("cosine")->needs_total());
  EXPECT_FALSE(FindSchedule("constant")->needs_total());
  EXPECT_EQ(FindSchedule("cosinus"), nullptr);
  EXPECT_EQ(Schedule{}.Factor(0), 1);
  EXPECT_THAT(OptimizerNames(), testing::ElementsAre("adamw"));
}

// Without a total, every step would lie past the end of the cosine, and the learning rate would
// stay 0.
TEST(ScheduleDeathTest, AScheduleThatEndsAtZeroDoesNotRunWithoutATotal) {
  const auto cosine = FindSchedule("cosine")->shape;
  EXPECT_DEATH(Schedule({.warmup = 2, .shape = cosine}).Factor(2), "needs the number of its steps");

  EXPECT_EQ(Schedule({.shape = FindSchedule("constant")->shape}).Factor(1000), 1);
  EXPECT_EQ(Schedule({.floor = 0.1, .shape = cosine}).Factor(1000), 0.1);
}

}  // namespace
}  // namespace sluice
