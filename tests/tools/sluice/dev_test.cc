#include "tools/sluice/dev.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "common/base/child.h"
#include "common/base/file.h"
#include "tools/sluice/fleet.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

TEST(DevKill, ADaemonThatIsDownBetweenTwoStartsIsSaidToBeDown) {
  const std::string dir = ::testing::TempDir() + "/dev-kill-" + std::to_string(getpid());
  ASSERT_TRUE(MakeDirs(dir).ok());
  // This process acts as the supervisor.
  FleetState state{getpid(), ProcessStart(getpid()), "127.0.0.1:9", {}};
  state.daemons.push_back({.name = "rollout-0",
                           .role = "rollout",
                           .pid = -1,
                           .start = 4,
                           .last_end = "signal 9 (Killed)"});
  ASSERT_TRUE(WriteFleetState(dir, state).ok());

  testing::internal::CaptureStderr();
  const ExitCode code = DevKill({.data_dir = dir}, "rollout-0", "KILL");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, kConflict);
  EXPECT_THAT(text, HasSubstr("error: rollout-0 is down now: signal 9 (Killed)\n"));
  EXPECT_THAT(text, HasSubstr("hint: it is started again"));
  (void)RemoveTree(dir);
}

}  // namespace
}  // namespace sluice::cli
