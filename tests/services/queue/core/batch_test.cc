#include "tests/services/queue/core/harness.h"

namespace sluice::queue {
namespace {

TEST(BatchTest, AStepGoesFromAdmissionToTheNextVersion) {
  Harness h;
  h.Start();
  for (int i = 0; i < 5; ++i) h.RunStep();
  EXPECT_EQ(h.job().version(), 5);
  EXPECT_EQ(h.job().ledger().applied, 5 * 4);
  EXPECT_EQ(h.job().ledger().gap(), 0);
}

}  // namespace
}  // namespace sluice::queue
