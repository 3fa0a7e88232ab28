#include "common/algorithms/kl.h"

#include <cmath>
#include <limits>

#include "common/base/splitmix.h"
#include "tests/common/algorithms/oracle.h"

namespace sluice {
namespace {

struct KlOracle {
  std::string kind;
  std::vector<double> value, grad;  // Of each token of F1.
  // The expected gradient with respect to the logits. The tokens are sampled from the policy, but
  // for k3_is from kBehav.
  std::vector<double> expected;
  bool exact;  // Whether `expected` is the gradient of KL(policy, reference).
};
const std::vector<KlOracle> kKlOracles = {
    {"k1", {-0.1, 0.2, -0.2, 0.2, -0.3}, {1, 1, 1, 1, 1}, {0, 0, 0}, false},
    {"k2",
     {0.005, 0.02, 0.02, 0.02, 0.045},
     {-0.1, 0.2, -0.2, 0.2, -0.3},
     {0.456047, -0.301201, -0.154846},
     true},
    {"k3",
     {0.005171, 0.018731, 0.021403, 0.018731, 0.049859},
     {-0.105171, 0.181269, -0.221403, 0.181269, -0.349859},
     {0.465241, -0.255272, -0.209969},
     false},
    {"k2+",
     {0.005171, 0.018731, 0.021403, 0.018731, 0.049859},
     {-0.1, 0.2, -0.2, 0.2, -0.3},
     {0.456047, -0.301201, -0.154846},
     true},
    {"k3_is",
     {0.006316, 0.025284, 0.026141, 0.016948, 0.040821},
     {-0.122140, 0.269972, -0.244281, 0.180967, -0.245619},
     {0.456047, -0.301201, -0.154846},
     true},
};

// A vocabulary of three tokens, on which the policy has the logits (1, 0, -1). These are the
// probabilities of the reference and of the behaviour policy.
const std::vector<double> kRef = {0.2, 0.5, 0.3};
const std::vector<double> kBehav = {0.5, 0.25, 0.25};
std::vector<double> Policy() {
  const double z = std::exp(1.0) + 1 + std::exp(-1.0);
  return {std::exp(1.0) / z, 1 / z, std::exp(-1.0) / z};
}

std::vector<double> ExpectedLogitGradient(KlFunction kl, const std::vector<double>& under) {
  const std::vector<double> p = Policy();
  std::vector<double> gradient(3, 0.0);
  for (int a = 0; a < 3; ++a) {
    const double grad = kl({.lp_theta = std::log(p[a]),
                            .lp_ref = std::log(kRef[a]),
                            .lp_behav = std::log(under[a])})
                            .grad;
    for (int v = 0; v < 3; ++v) gradient[v] += under[a] * grad * ((v == a ? 1 : 0) - p[v]);
  }

  return gradient;
}

TEST(KlTest, EveryRowHasAnOracle) {
  std::vector<std::string> tested;
  for (const KlOracle& oracle : kKlOracles) tested.push_back(oracle.kind);
  ExpectOracleForEveryRow(KlRows(), tested);
}

TEST(KlTest, RowsGiveTheWorkedNumbers) {
  const F1 f;
  for (const KlOracle& oracle : kKlOracles) {
    std::vector<float> value(5), grad(5);
    ComputeKlLoss(FindRow(KlRows(), oracle.kind)->value.function, f.Tokens(ProxMode::kNone),
                  absl::MakeSpan(value), absl::MakeSpan(grad));
    ExpectAllClose(value, oracle.value, oracle.kind);
    ExpectAllClose(grad, oracle.grad, oracle.kind + " gradient");
  }
}

TEST(KlTest, T08ExpectedGradientsAreThoseThatEnumerationGives) {
  const std::vector<double> p = Policy();
  double kl = 0;
  for (int v = 0; v < 3; ++v) kl += p[v] * std::log(p[v] / kRef[v]);
  EXPECT_NEAR(kl, 0.516296, 1e-6);

  for (const KlOracle& oracle : kKlOracles) {
    const KlFunction function = FindRow(KlRows(), oracle.kind)->value.function;
    const std::vector<double> gradient =
        ExpectedLogitGradient(function, oracle.kind == "k3_is" ? kBehav : p);
    for (int v = 0; v < 3; ++v) {
      EXPECT_NEAR(gradient[v], oracle.expected[v], 1e-6) << oracle.kind;
      if (oracle.exact) {
        EXPECT_NEAR(gradient[v], p[v] * (std::log(p[v] / kRef[v]) - kl), 1e-10) << oracle.kind;
      }
    }
  }

  // Without a weight, k3 on samples of another policy is the gradient of neither direction of the
  // KL.
  const std::vector<double> stale = ExpectedLogitGradient(KlK3, kBehav);
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
