#include "common/algorithms/proximal.h"

#include <cmath>

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
