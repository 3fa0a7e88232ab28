#include "common/algorithms/proximal.h"

#include <cmath>

#include "common/algorithms/correction.h"
#include "tests/common/algorithms/oracle.h"

namespace sluice {
namespace {

TEST(ProximalTest, LoglinearGivesTheWorkedNumbers) {
  const F1 f;
  ExpectAllClose(LoglinearProximal(f.theta, f.behav, f.staleness),
                 std::vector<double>{-0.566667, -1.35, -2.2, -0.85, -1.5}, "lp_prox");
}

TEST(ProximalTest, T26LoglinearTakesTheCurrentPolicyWhereNoLogProbWasRecorded) {
  const F1 f;
  std::vector<float> behav = f.behav;
  behav[1] = std::nanf("");
  const std::vector<float> prox = LoglinearProximal(f.theta, behav, f.staleness);
  EXPECT_EQ(prox[1], f.theta[1]);
  EXPECT_FLOAT_EQ(prox[0], LoglinearProximal(f.theta, f.behav, f.staleness)[0]);
}

// One token of the sheet's example of P5.
struct ExactToken {
  std::vector<int64_t> offsets = {0, 1};
  std::vector<float> behav = {-1.5f}, snap = {-1.45f}, prox = {-1.6f}, theta = {-1.2f},
                     advantage = {1};

  Correction Correct(const CorrectionRule& rule) const {
    return ComputeCorrection(rule, {.offsets = offsets,
                                    .lp_theta = theta,
                                    .lp_prox = prox,
                                    .lp_behav = behav,
                                    .lp_ref = {},
                                    .advantage = advantage,
                                    .allowed = {},
                                    .lp_snap = snap});
  }
};

TEST(ProximalTest, ExactDividesTheWeightAsInTheWorkedExample) {
  constexpr double kOff = CorrectionRule::kOff;
  const CorrectionRule open{.cap = kOff, .split = true, .stale_cap = kOff};
  ExactToken token;
  const double r = std::exp(token.theta[0] - token.prox[0]);
  ExpectClose(r, 1.491825, "r");
  ExpectClose(token.Correct(open).weight[0], 1.051271 * 0.860708, "w");
  ExpectClose(r * token.Correct(open).weight[0], 1.349859, "the product");
  EXPECT_EQ(token.Correct(open).conflated, 0);

  // A cap of w_mis that w itself does not reach, and one of w_stale.
  CorrectionRule capped = open;
  capped.cap = 1.02;
  ExpectClose(token.Correct(capped).weight[0], 1.02 * 0.860708, "capped w_mis");
  EXPECT_EQ(token.Correct(capped).capped_tokens, 1);
  capped.stale_cap = 0.8;
  ExpectClose(token.Correct(capped).weight[0], 1.02 * 0.8, "capped w_stale");
  EXPECT_EQ(token.Correct(capped).stale_capped, 1);

  // Masks look at w_mis too.
  CorrectionRule masked = open;
  masked.veto_high = 1.05;
  EXPECT_EQ(token.Correct(masked).keep[0], 0);
  masked = open;
  masked.veto = 0.95;
  EXPECT_EQ(token.Correct(masked).keep[0], 1) << "w is 0.905";
  masked.outside = WeightOutside::kDrop;
  masked.low = 0.95;
  EXPECT_EQ(token.Correct(masked).keep[0], 1);
}

TEST(ProximalTest, AVersionThatIsNotKnownConflatesItsTokens) {
  ExactToken token;
  token.snap[0] = std::nanf("");
  const Correction c = token.Correct({.split = true, .stale_cap = 1});
  ExpectClose(c.weight[0], 0.904837, "w");
  EXPECT_EQ(c.conflated, 1);
  EXPECT_EQ(token.Correct({}).conflated, 1) << "other modes know no version";

  const std::vector<int32_t> staleness = {0, 1, 2};
  const std::vector<float> now = {-1, -2, -3}, older = {std::nanf(""), -5, std::nanf("")};
  const std::vector<float> own = OwnVersionLogprobs(older, now, staleness);
  EXPECT_EQ(own[0], -1);
  EXPECT_EQ(own[1], -5);
  EXPECT_TRUE(std::isnan(own[2]));
  EXPECT_TRUE(std::isnan(OwnVersionLogprobs({}, now, staleness)[1]));
}

TEST(ProximalTest, EwmaGivesTheWorkedNumbers) {
  double phi = 1, c = 1;
  const double theta[] = {1.1, 1.3, 1.2}, wanted[] = {1.052938, 1.145149, 1.161368};
  for (int n = 1; n <= 3; ++n) {
    const EwmaWeights w = EwmaAt(0.889, n);
    phi = w.old_weight * phi + w.new_weight * theta[n - 1];
    ExpectClose(phi, wanted[n - 1], "phi");
    // The recurrence of the paper, which the closed form must equal.
    const double next = 0.889 * c + 1;
    EXPECT_NEAR(w.old_weight, 0.889 * c / next, 1e-12);
    EXPECT_NEAR(w.new_weight, 1 / next, 1e-12);
    c = next;
  }
}

TEST(ProximalTest, EwmaWithoutMemoryIsTheNewestWeights) {
  for (const int64_t n : {1, 2, 100}) {
    EXPECT_EQ(EwmaAt(0, n).old_weight, 0);
    EXPECT_EQ(EwmaAt(0, n).new_weight, 1);
  }
}

}  // namespace
}  // namespace sluice
