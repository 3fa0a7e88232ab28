#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/match.h"
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

// The controller gives the answers of a daemon that has left to others, so a rollout must not seem
// to have left while its answers use their grace time. Here they cannot end, because the queue
// stands still, until the controller misses the queue.
TEST(DrainGraceTest, ARolloutStaysWithTheControllerUntilItsAnswersHaveEnded) {
  Cluster cluster({.env = {{"SLUICE_DRAIN_GRACE", "1h"}}});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = SubmitDigits(&cluster, kEndless);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(3, kLong), absl::OkStatus());
  // It stops itself with an answer that is about to be sealed.
  ASSERT_EQ(cluster.Arm("rollout-0", "rollout.seal.before", "stop", 1), absl::OkStatus());
  ASSERT_EQ(cluster.process("rollout-0").AwaitStopped(), absl::OkStatus());
  cluster.Signal("queue-0", SIGSTOP);
  ASSERT_EQ(cluster.process("queue-0").AwaitStopped(), absl::OkStatus());

  cluster.Signal("rollout-0", SIGTERM);
  cluster.Signal("rollout-0", SIGCONT);
  ASSERT_EQ((*job)->AwaitEvent("daemon_lost", kLong), absl::OkStatus());
  for (const common::v1::Event& event : (*job)->events())
    ASSERT_FALSE(absl::StartsWith(event.code(), "daemon_") && event.daemon() == "rollout-0")
        << event.code() << ": " << event.message();

  cluster.Signal("queue-0", SIGCONT);
  const auto exit = cluster.process("rollout-0").Await(kLong);
  ASSERT_EQ(exit.status(), absl::OkStatus());
  EXPECT_EQ(*exit, 0) << cluster.Log("rollout-0");
  EXPECT_EQ((*job)->AwaitEvent("daemon_left", kLong), absl::OkStatus());
}

// The last checkpoint of a trainer that drains waits for the queue, which stands still here.
// Another trainer takes its place meanwhile, because it stands still too, so there is nothing to
// wait for.
TEST(DrainGraceTest, ATrainerThatIsReplacedWhileItDrainsEndsWithoutALastCheckpoint) {
  Cluster cluster({.trainers = 2});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = SubmitDigits(&cluster, kEndless);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(3, kLong), absl::OkStatus());
  cluster.Signal("queue-0", SIGSTOP);
  ASSERT_EQ(cluster.process("queue-0").AwaitStopped(), absl::OkStatus());
  cluster.Signal("trainer-0", SIGTERM);
  const auto drains = [&] { return absl::StrContains(cluster.Log("trainer-0"), "\"draining\""); };
  for (const absl::Time end = absl::Now() + kLong; !drains() && absl::Now() < end;) {
  }
  ASSERT_TRUE(drains());
  cluster.Signal("trainer-0", SIGSTOP);
  ASSERT_EQ(cluster.process("trainer-0").AwaitStopped(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitEvent("trainer_group", kLong), absl::OkStatus());

  cluster.Signal("trainer-0", SIGCONT);
  const auto exit = cluster.process("trainer-0").Await(kLong);
  ASSERT_EQ(exit.status(), absl::OkStatus());
  EXPECT_EQ(*exit, 0) << cluster.Log("trainer-0");
}

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
