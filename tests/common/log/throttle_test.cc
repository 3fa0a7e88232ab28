#include "common/log/throttle.h"

#include <gtest/gtest.h>

namespace sluice::log {
namespace {

TEST(ThrottleTest, OneLineForEachIntervalSaysHowManyItStandsFor) {
  Throttle throttle(absl::Seconds(10));
  EXPECT_EQ(throttle.Count(absl::Seconds(0)), 1u) << "the first is told at once";
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(throttle.Count(absl::Seconds(5)), std::nullopt);
  EXPECT_EQ(throttle.Count(absl::Seconds(10)), 1001u);
  EXPECT_EQ(throttle.Count(absl::Seconds(11)), std::nullopt);
}

TEST(ThrottleTest, TakeRestReturnsTheEventsThatNoLineReported) {
  Throttle throttle(absl::Seconds(10));
  throttle.Count(absl::Seconds(0));
  EXPECT_EQ(throttle.TakeRest(), 0u);

  throttle.Count(absl::Seconds(1));
  throttle.Count(absl::Seconds(2));
  EXPECT_EQ(throttle.TakeRest(), 2u);
  EXPECT_EQ(throttle.TakeRest(), 0u);
}

}  // namespace
}  // namespace sluice::log
