#include "services/rollout/core/row_health/row_health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"

namespace sluice::rollout {
namespace {

// A step in which `finite` rows give tokens and `nonfinite` rows fail for `reason`.
StepEvents Step(int finite, int nonfinite, const char* reason = "NONFINITE",
                PolicyVersion version = {1, 7}) {
  StepEvents events;
  for (int i = 0; i < finite; ++i) events.tokens.push_back({.version = version});
  for (int i = 0; i < nonfinite; ++i)
    events.failures.push_back({0, Error(absl::StatusCode::kDataLoss, reason, "a row"), version});
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

TEST(RowHealthTest, RowsOfOlderVersionsSayNothingAboutThisOne) {
  RowHealth health;
  health.StartVersion({1, 7});
  EXPECT_FALSE(health.CountRows(Step(100, 100, "NONFINITE", {1, 6})));
  EXPECT_EQ(health.counts().rows, 0u);
  EXPECT_TRUE(health.status().ok());
}

TEST(RowHealthTest, AFewRowsSayNothingAndOtherFailuresAreNoRows) {
  RowHealth health;
  health.StartVersion({1, 7});
  EXPECT_FALSE(health.CountRows(Step(0, RowHealth::kFewest - 1)));
  EXPECT_FALSE(health.CountRows(Step(0, 100, "TOO_LONG")));
  EXPECT_TRUE(health.status().ok());
}

TEST(RowHealthTest, OtherWeightsBeginAnew) {
  RowHealth health;
  health.StartVersion({1, 7});
  EXPECT_TRUE(health.CountRows(Step(0, 50)));
  health.StartVersion({1, 8});
  EXPECT_TRUE(health.status().ok());
}

}  // namespace
}  // namespace sluice::rollout
