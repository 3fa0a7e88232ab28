#include "common/algorithms/distill.h"

#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/algorithms/kl.h"
#include "common/algorithms/losses/reinforce.h"
#include "common/algorithms/policy_loss.h"
#include "common/algorithms/presets.h"
#include "tests/common/algorithms/bandit.h"
#include "tests/common/algorithms/oracle.h"

namespace sluice {
namespace {

const DistillRule kSampled{.kind = DistillKind::kSampled};

// The advantages of F1 with its reference as the teacher.
std::vector<float> Distill(F1 f, const DistillRule& rule, ProxMode prox,
                           DistillSums* sums = nullptr) {
  DistillSums unused;
  PolicyTokens tokens = f.Tokens(prox);
  tokens.lp_teacher = f.ref;
  return DistilledAdvantages(rule, prox, tokens, sums == nullptr ? &unused : sums);
}

TEST(DistillTest, EveryRowIsTested) {
  // The numbers of `full` are in train_model_test.cc and slow/losses_test.cc.
  ExpectOracleForEveryRow(DistillRows(), {"sampled", "full"});
}

TEST(DistillTest, PureAdvantagesAreTheWorkedNumbers) {
  F1 f;
  f.advantage.assign(5, 0.0f);
  DistillSums sums;
  ExpectAllClose(Distill(f, kSampled, ProxMode::kRecompute, &sums),
                 std::vector<double>{0.2, 0.2, 0.1, -0.1, -0.2}, "anchor prox");
  // The mean of lp_theta - lp_teacher: -0.1 0.2 -0.2 / 0.2 -0.3.
  ExpectClose(sums.kl, -0.2, "teacher_kl");
  EXPECT_EQ(sums.left_out, 0);

  ExpectAllClose(Distill(f, kSampled, ProxMode::kSelf),
                 std::vector<double>{0.1, -0.2, 0.2, -0.2, 0.3}, "anchor theta");
  ExpectAllClose(Distill(f, kSampled, ProxMode::kNone),
                 std::vector<double>{0.3, 0.1, 0.4, -0.3, 0.1}, "anchor behav");
}

TEST(DistillTest, TheTeachersPartIsAddedToTheTasksWithItsCoefficient) {
  ExpectAllClose(Distill({}, {.kind = DistillKind::kSampled, .coef = 0.5}, ProxMode::kRecompute),
                 std::vector<double>{1.1, 1.1, 1.05, -0.55, -0.6}, "mixed");
}

TEST(DistillTest, ATokenWhoseProbabilityHasFallenTooFarKeepsTheTasksAdvantage) {
  F1 f;
  f.theta[0] = -2;     // exp(-2) - exp(-0.7) = -0.361
  f.theta[3] = -1.1f;  // exp(-1.1) - exp(-0.8) = -0.116
  DistillSums sums;
  const std::vector<float> a =
      Distill(f, {.kind = DistillKind::kSampled, .trust_region = 0.2}, ProxMode::kRecompute, &sums);
  ExpectAllClose(a, std::vector<double>{1, 1.2, 1.1, -0.6, -0.7}, "trust region 0.2");
  EXPECT_EQ(sums.left_out, 1);
}

TEST(DistillTest, ATokenThatTheTeacherFindsImpossibleCountsAsFarAsTheClamp) {
  F1 f;
  f.ref[1] = -1000;
  f.behav[2] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a = Distill(f, kSampled, ProxMode::kNone);
  EXPECT_EQ(a[1], 1 - 20);
  EXPECT_EQ(a[2], 1);  // Without an anchor there is no part of the teacher.
}

// Three tokens, z = (1, 0, -1), and a teacher of the probabilities (0.2, 0.5, 0.3).
struct ThreeTokens {
  std::array<double, 3> p{}, teacher = {0.2, 0.5, 0.3};
  ThreeTokens() {
    const double sum = std::exp(1) + 1 + std::exp(-1);
    for (int v = 0; v < 3; ++v) p[v] = std::exp(1 - v) / sum;
  }
  // The expectation over the policy's own tokens of slope(v) d lp_v / d z.
  template <typename F>
  std::array<double, 3> Expect(const F& slope) const {
    std::array<double, 3> gradient{};
    for (int v = 0; v < 3; ++v) {
      for (int z = 0; z < 3; ++z) gradient[z] += p[v] * slope(v) * ((v == z ? 1 : 0) - p[z]);
    }
    return gradient;
  }
};

TEST(DistillTest, TheExpectedGradientIsThatOfTheReverseKl) {
  const ThreeTokens x;
  std::vector<float> theta, teacher;
  for (int v = 0; v < 3; ++v) {
    theta.push_back(static_cast<float>(std::log(x.p[v])));
    teacher.push_back(static_cast<float>(std::log(x.teacher[v])));
  }
  const std::vector<int64_t> offsets = {0, 3};
  const std::vector<float> zero(3, 0.0f);
  const PolicyTokens tokens{.offsets = offsets,
                            .lp_theta = theta,
                            .lp_prox = {},
                            .lp_behav = theta,
                            .lp_ref = {},
                            .advantage = zero,
                            .allowed = {},
                            .lp_teacher = teacher};
  DistillSums sums;
  const std::vector<float> a = DistilledAdvantages(kSampled, ProxMode::kSelf, tokens, &sums);
  const TokenLoss reinforce = MakeReinforce({});
  ExpectAllClose(
      x.Expect([&](int v) { return reinforce({.lp_theta = theta[v], .advantage = a[v]}).grad; }),
      std::vector<double>{0.456047, -0.301201, -0.154846}, "sampled form");

  // Differentiating lp_theta - lp_teacher instead would teach nothing.
  ExpectAllClose(
      x.Expect([&](int v) { return KlK1({.lp_theta = theta[v], .lp_ref = teacher[v]}).grad; }),
      std::vector<double>{0, 0, 0}, "k1 as a loss");
}

TEST(DistillTest, TheBanditTakesOverItsTeachersProbability) {
  const AlgorithmSpec opd = FindRow(PresetRows(), "opd")->value;
  for (const int lag : {0, 4, 16}) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      for (const double teacher : {0.3, 0.8}) {
        EXPECT_NEAR(TrainBandit(opd, lag, seed, teacher).final_p, teacher, 0.05)
            << "lag " << lag << " seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace sluice
