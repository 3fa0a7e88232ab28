#include "services/rollout/core/row_health/row_health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"

namespace sluice::rollout {
namespace {

// A step in which `finite` rows give tokens and `nonfinite` rows fail for `reason`.
StepEvents Step(int finite, int nonfinite, const char* reason = "NONFINITE") {
  StepEvents events;
  events.tokens.resize(finite);
  for (int i = 0; i < nonfinite; ++i)
    events.failures.push_back({0, Error(absl::StatusCode::kDataLoss, reason, "a row")});
  return events;
}

TEST(RowHealthTest, MoreThanOneRowInAHundredMakesTheVersionUnfit) {
  RowHealth health;
  health.StartVersion({1, 7});
  EXPECT_FALSE(health.CountRows(Step(792, 8)));
  EXPECT_TRUE(health.status().ok()) << "8 of 800";
  EXPECT_TRUE(health.CountRows(Step(0, 1)));
  EXPECT_FALSE(health.CountRows(Step(0, 1))) << "said once";
  EXPECT_THAT(health.status().message(),
              testing::HasSubstr("version 1:7 gives logits that are not finite: 10 of 802 rows"));
}

TEST(RowHealthTest, AFewRowsSayNothingAndOtherFailuresAreNoRows) {
  RowHealth health;
  EXPECT_FALSE(health.CountRows(Step(0, RowHealth::kFewest - 1)));
  EXPECT_FALSE(health.CountRows(Step(0, 100, "TOO_LONG")));
  EXPECT_TRUE(health.status().ok());
}

TEST(RowHealthTest, OtherWeightsBeginAnew) {
  RowHealth health;
  EXPECT_TRUE(health.CountRows(Step(0, 50)));
  health.StartVersion({1, 8});
  EXPECT_TRUE(health.status().ok());
}

}  // namespace
}  // namespace sluice::rollout
