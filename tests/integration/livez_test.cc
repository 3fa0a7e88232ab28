// A loop of a daemon that stops for ever is seen by whoever asks /livez, and named. The kubelet
// then starts the daemon anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/common/daemon/http.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

namespace sluice::integration {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// A failpoint in a loop, which is watched under this name.
struct StuckLoop {
  const char* daemon;
  const char* failpoint;
  const char* name;
};

class LivezTest : public testing::TestWithParam<StuckLoop> {};

TEST_P(LivezTest, ALoopThatHangsIsNamedAndTheOtherDaemonsStayAlive) {
  const StuckLoop& stuck = GetParam();
  Cluster cluster({.env = {{"SLUICE_STALL_LIMIT", "5s"}}});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = SubmitDigits(&cluster, /*steps=*/1'000'000);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(1, kLong), absl::OkStatus());
  const auto live = [&](const std::string& id) {
    return daemon::HttpGet(cluster.ops(id), "/livez");
  };
  for (const std::string& id : cluster.ids()) EXPECT_THAT(live(id), StartsWith("HTTP/1.1 200"));

  ASSERT_EQ(cluster.Arm(stuck.daemon, stuck.failpoint, "hang", 1), absl::OkStatus());

  std::string answer;
  const absl::Time deadline = absl::Now() + kLong;
  while (!absl::StartsWith(answer, "HTTP/1.1 503") && absl::Now() < deadline)
    answer = live(stuck.daemon);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(answer, HasSubstr(absl::StrCat("the loop '", stuck.name, "' has not moved for ")));
  // They wait for it now, which is no fault of theirs.
  for (const std::string& id : cluster.ids()) {
    if (id == stuck.daemon) continue;
    EXPECT_THAT(live(id), StartsWith("HTTP/1.1 200")) << id;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, LivezTest,
                         testing::Values(StuckLoop{"controller-0", "controller.store.before_commit",
                                                   "controller"},
                                         StuckLoop{"queue-0", "queue.timer", "timer"},
                                         StuckLoop{"rollout-0", "rollout.step", "decode"}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sluice::integration
