#include "common/base/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace sluice {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;

class WatchdogTest : public ::testing::Test {
 protected:
  // What is wrong after the time; empty if all is well.
  std::string After(absl::Duration time) {
    clock_.Advance(time);
    return std::string(watchdog_.Check().message());
  }

  ManualClock clock_;
  Watchdog watchdog_{&clock_};
};

TEST_F(WatchdogTest, ALoopThatTicksInTimeIsWell) {
  Watchdog::Loop loop(&watchdog_, "decode");
  for (int i = 0; i < 10; ++i) {
    loop.Tick();
    EXPECT_EQ(After(Watchdog::kLimit), "");
  }
}

TEST_F(WatchdogTest, ALoopThatStopsTickingIsNamedWithItsSilence) {
  Watchdog::Loop well(&watchdog_, "timer");
  Watchdog::Loop stuck(&watchdog_, "decode");
  stuck.Tick();
  clock_.Advance(absl::Seconds(20));
  well.Tick();

  EXPECT_EQ(After(absl::Seconds(11)), "the loop 'decode' has not moved for 31s; its limit is 30s");
}

TEST_F(WatchdogTest, ALoopThatTicksAgainIsWellAgain) {
  Watchdog::Loop loop(&watchdog_, "decode");
  loop.Tick();
  EXPECT_NE(After(absl::Minutes(1)), "");
  loop.Tick();
  EXPECT_EQ(After(absl::ZeroDuration()), "");
}

TEST_F(WatchdogTest, ALoopThatRestsMayBeSilentForEver) {
  Watchdog::Loop loop(&watchdog_, "decode");
  EXPECT_EQ(After(absl::Hours(1)), "") << "it has not begun";
  loop.Tick();
  loop.Rest();
  EXPECT_EQ(After(absl::Hours(24)), "");
}

TEST_F(WatchdogTest, LongWorkMayTakeAsLongAsItSaidAndIsThenNamed) {
  Watchdog::Loop loop(&watchdog_, "job");
  loop.Begin("loads the model", absl::Minutes(10));
  EXPECT_EQ(After(absl::Minutes(10)), "");
  EXPECT_THAT(After(absl::Seconds(1)),
              AllOf(HasSubstr("'job'"), HasSubstr("it loads the model"), HasSubstr("10m")));
}

TEST_F(WatchdogTest, ATickEndsLongWork) {
  Watchdog::Loop loop(&watchdog_, "job");
  loop.Begin("loads the model", absl::Minutes(10));
  loop.Tick();
  EXPECT_NE(After(absl::Seconds(31)), "");
}

TEST_F(WatchdogTest, AllStuckLoopsAreNamed) {
  Watchdog::Loop a(&watchdog_, "a"), b(&watchdog_, "b");
  a.Tick();
  b.Tick();
  EXPECT_THAT(After(absl::Minutes(1)), AllOf(HasSubstr("'a'"), HasSubstr("'b'")));
}

TEST_F(WatchdogTest, ALoopThatHasEndedIsForgotten) {
  {
    Watchdog::Loop loop(&watchdog_, "decode");
    loop.Tick();
  }
  EXPECT_EQ(After(absl::Minutes(1)), "");
}

TEST_F(WatchdogTest, TheLimitCanBeSet) {
  watchdog_.SetLimit(absl::Seconds(2));
  Watchdog::Loop loop(&watchdog_, "decode");
  loop.Tick();
  EXPECT_EQ(After(absl::Seconds(2)), "");
  EXPECT_THAT(After(absl::Seconds(1)), HasSubstr("its limit is 2s"));
}

}  // namespace
}  // namespace sluice
