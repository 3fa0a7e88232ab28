#include <gtest/gtest.h>

#include "tests/integration/faults.h"

namespace sluice::integration {
namespace {

// A daemon gets SIGTERM in the middle of a job. The parameter is its id.
class DrainTest : public testing::TestWithParam<const char*> {};

TEST_P(DrainTest, ADaemonEndsWithZeroAndTheJobGoesOnWithItsSuccessor) {
  const std::string id = GetParam();
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = SubmitDigits(&cluster, kEndless);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(3, kLong), absl::OkStatus());

  const auto exit = cluster.Terminate(id, kLong);
  ASSERT_EQ(exit.status(), absl::OkStatus());
  EXPECT_EQ(*exit, 0) << cluster.Log(id);

  ASSERT_EQ(cluster.Start(id), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep((*job)->steps() + kStepsAfter, kLong), absl::OkStatus());
  const auto said = cluster.Sluice({"job", "cancel", (*job)->id()});
  ASSERT_TRUE(said.ok() && said->exit == 0) << (said.ok() ? said->err : said.status().ToString());

  const auto end = (*job)->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_CANCELLED) << Text(*end);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(Of, DrainTest,
                         testing::Values("controller-0", "queue-0", "reward-0", "rollout-0",
                                         "trainer-0"),
                         [](const auto& info) {
                           const std::string id = info.param;
                           return id.substr(0, id.find('-'));
                         });

TEST(IdleTest, AnIdleFleetEndsWithZero) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  for (const std::string& id : cluster.ids()) {
    const auto exit = cluster.Terminate(id, kLong);
    ASSERT_EQ(exit.status(), absl::OkStatus()) << id;
    EXPECT_EQ(*exit, 0) << id << cluster.Log(id);
  }
}

}  // namespace
}  // namespace sluice::integration
