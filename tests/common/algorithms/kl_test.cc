#include "common/algorithms/kl.h"

#include <cmath>
#include <limits>

#include "common/base/splitmix.h"
#include "tests/common/algorithms/kl_oracles.h"

namespace sluice {
namespace {

std::vector<double> ExpectedLogitGradient(KlFunction kl, const std::vector<double>& under) {
  const std::vector<double> p = KlPolicy();
  std::vector<double> gradient(3, 0.0);
  for (int a = 0; a < 3; ++a) {
    const double grad = kl({.lp_theta = std::log(p[a]),
                            .lp_ref = std::log(kKlRef[a]),
                            .lp_behav = std::log(under[a])})
                            .grad;
    for (int v = 0; v < 3; ++v) gradient[v] += under[a] * grad * ((v == a ? 1 : 0) - p[v]);
  }

  return gradient;
}

TEST(KlTest, EveryRowHasAnOracle) {
  std::vector<std::string> tested;
  for (const KlOracle& oracle : KlOracles()) tested.push_back(oracle.kind);
  ExpectOracleForEveryRow(KlRows(), tested);
}

TEST(KlTest, RowsGiveTheWorkedNumbers) {
  const F1 f;
  for (const KlOracle& oracle : KlOracles()) {
    std::vector<float> value(5), grad(5);
    ComputeKlLoss(FindRow(KlRows(), oracle.kind)->value.function, f.Tokens(ProxMode::kNone),
                  absl::MakeSpan(value), absl::MakeSpan(grad));
    ExpectAllClose(value, oracle.value, oracle.kind);
    ExpectAllClose(grad, oracle.grad, oracle.kind + " gradient");
  }
}

TEST(KlTest, T08ExpectedGradientsAreThoseThatEnumerationGives) {
  const std::vector<double> p = KlPolicy();
  double kl = 0;
  for (int v = 0; v < 3; ++v) kl += p[v] * std::log(p[v] / kKlRef[v]);
  EXPECT_NEAR(kl, 0.516296, 1e-6);

  for (const KlOracle& oracle : KlOracles()) {
    const KlFunction function = FindRow(KlRows(), oracle.kind)->value.function;
    const std::vector<double> gradient =
        ExpectedLogitGradient(function, oracle.kind == "k3_is" ? kKlBehav : p);
    for (int v = 0; v < 3; ++v) {
      EXPECT_NEAR(gradient[v], oracle.expected[v], 1e-6) << oracle.kind;
      if (oracle.exact) {
        EXPECT_NEAR(gradient[v], p[v] * (std::log(p[v] / kKlRef[v]) - kl), 1e-10) << oracle.kind;
      }
    }
  }

  // Without a weight, k3 on samples of another policy is the gradient of neither direction of the
  // KL.
  const std::vector<double> stale = ExpectedLogitGradient(KlK3, kKlBehav);
  for (int v = 0; v < 3; ++v)
    EXPECT_NEAR(stale[v], (std::vector<double>{0.678402, -0.139840, -0.538562})[v], 1e-6);
}

TEST(KlTest, T05GradientsAgreeWithFiniteDifferences) {
  constexpr double kH = 1e-6;
  for (const Row<KlEntry>& row : KlRows()) {
    // By design, the gradient of k2+ is not the derivative of its value.
    if (row.name == "k2+") continue;

    SplitMix64 random(3);
    for (int i = 0; i < 1000; ++i) {
      const KlToken token{-3 * random.Uniform(), -3 * random.Uniform(), -3 * random.Uniform()};
      KlToken up = token, down = token;
      up.lp_theta += kH;
      down.lp_theta -= kH;

      const KlFunction f = row.value.function;
      const double slope = (f(up).value - f(down).value) / (2 * kH);
      // The value of k3 is limited to 10, so it has a kink there.
      if (std::abs(KlK3(token).value - 10) < 1e-3) continue;

      EXPECT_NEAR(f(token).grad, slope, 1e-6 * std::max(1.0, std::abs(slope))) << row.name;
    }
  }
}

TEST(KlTest, ValuesAreBoundedFarFromTheReference) {
  for (const Row<KlEntry>& row : KlRows()) {
    const LossValue far = row.value.function({.lp_theta = -60, .lp_ref = -0.1, .lp_behav = -60});
    EXPECT_TRUE(std::isfinite(far.value)) << row.name;
    // k3_is still has a gradient, because its weight rho depends on theta.
    EXPECT_EQ(far.grad, row.name == "k3_is" ? 10 : 0) << row.name;
  }
}

TEST(KlTest, ABadBehaviourLogProbTakesTheTokenOutOfTheWeightedTermAlone) {
  const KlToken token{-1, -2, std::nan("")};
  EXPECT_EQ(KlK3Is(token).value, 0);
  EXPECT_EQ(KlK3Is(token).grad, 0);
  EXPECT_NE(KlK2Plus(token).grad, 0);
}

TEST(KlTest, EveryRowButK1MayBeALoss) {
  for (const Row<KlEntry>& row : KlRows()) EXPECT_EQ(row.value.as_loss, row.name != "k1");
}

}  // namespace
}  // namespace sluice
