#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/rpc/client.h"
#include "tests/integration/faults.h"

namespace sluice::integration {
namespace {

TEST_F(FaultsTest, AKilledRolloutLosesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartJob({}, {}, kSteps));
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("rollout-0"));
  EXPECT_EQ(ExpectGoesOn().result().restarts().at("rollout"), 1);
}

TEST_F(FaultsTest, AKilledRolloutsWorkGoesOnAtAnother) {
  ASSERT_NO_FATAL_FAILURE(StartJob({.rollouts = 2}, {"resources.rollout.max=2"}, kSteps));
  ASSERT_EQ(job_->AwaitStep(kBefore, kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Kill("rollout-0"), absl::OkStatus());
  RecordFault();
  ExpectGoesOn();
}

TEST_F(FaultsTest, AKilledRewardsTasksAreScoredAgain) {
  ASSERT_NO_FATAL_FAILURE(StartJob({}, {}, kSteps));
  ASSERT_NO_FATAL_FAILURE(KillAt("reward-0", "reward.leased", 2));
  EXPECT_EQ(ExpectGoesOn().result().restarts().at("reward"), 1);
}

TEST_F(FaultsTest, AScoreThatWasNotPutIsScoredAgain) {
  ASSERT_NO_FATAL_FAILURE(StartJob({}, {}, kSteps));
  ASSERT_NO_FATAL_FAILURE(KillAt("reward-0", "reward.scored", 5));
  ExpectGoesOn();
}

class TrainerFaultsTest : public FaultsTest, public testing::WithParamInterface<const char*> {
 protected:
  // metrics.jsonl has each step once and in order, and `sluice job steps` prints the same lines.
  void ExpectWholeHistory(const job::v1::JobStatus& end) {
    const std::string& checkpoint = end.result().checkpoint();
    const auto text = ReadFile(checkpoint.substr(0, checkpoint.rfind('/')) + "/metrics.jsonl");
    ASSERT_EQ(text.status(), absl::OkStatus());
    const std::vector<std::string> lines = absl::StrSplit(*text, '\n', absl::SkipEmpty());
    ASSERT_EQ(lines.size(), static_cast<size_t>(end.result().steps()));
    for (size_t k = 0; k < lines.size(); ++k) {
      EXPECT_TRUE(absl::StartsWith(lines[k], absl::StrCat("{\"step\":", k, ","))) << lines[k];
    }

    const auto steps = cluster_->Sluice({"job", "steps", job_->id(), "-o", "json"});
    ASSERT_EQ(steps.status(), absl::OkStatus());
    const std::vector<std::string> told = absl::StrSplit(steps->out, '\n', absl::SkipEmpty());
    EXPECT_GE(told.size(), lines.size() - 1)
        << "a kill can lose the report of at most one step, which a checkpoint holds";
    for (const std::string& line : told) {
      EXPECT_NE(std::find(lines.begin(), lines.end(), line), lines.end()) << line;
    }
  }
};

TEST_P(TrainerFaultsTest, AKilledTrainerGoesOnFromItsCheckpoint) {
  ASSERT_NO_FATAL_FAILURE(StartJob({}, {}, kSteps));
  ASSERT_NO_FATAL_FAILURE(KillAt("trainer-0", GetParam(), 2));
  const job::v1::JobStatus end = ExpectGoesOn();
  EXPECT_EQ(end.result().restarts().at("trainer"), 1);
  ExpectWholeHistory(end);
}

INSTANTIATE_TEST_SUITE_P(At, TrainerFaultsTest,
                         testing::Values("trainer.step.before_apply", "trainer.step.after_apply",
                                         "trainer.checkpoint.before_rename",
                                         "trainer.durable.before", "trainer.publish.before"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST_F(FaultsTest, AKilledControllerDisturbsNothing) {
  ASSERT_NO_FATAL_FAILURE(StartJob({}, {}, kSteps));
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("controller-0"));
  const job::v1::JobStatus end = ExpectGoesOn();
  EXPECT_EQ(end.incarnation(), 1);
  for (const auto& [role, count] : end.result().restarts())
    EXPECT_EQ(count, role == "controller" ? 1 : 0) << role;
}

TEST_F(FaultsTest, AControllerKilledWhileItStoresGoesOn) {
  ASSERT_NO_FATAL_FAILURE(StartJob({}, {}, kSteps));
  ASSERT_NO_FATAL_FAILURE(KillAt("controller-0", "controller.store.before_commit", 2));
  ExpectGoesOn();
}

// The thread of the job's watch calls the controller while that is started again.
TEST_F(FaultsTest, AChannelOutlivesTheRestartOfItsDaemon) {
  ASSERT_NO_FATAL_FAILURE(StartJob({}, {}, kSteps));
  const rpc::Channel& before = cluster_->controller();
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("controller-0"));

  job::v1::ListResponse jobs;
  EXPECT_EQ(rpc::Call(before, job::v1::ListRequest(), &jobs, {.give_up = kLong}), absl::OkStatus());
  EXPECT_EQ(jobs.jobs_size(), 1);
  ExpectGoesOn();
}

TEST_F(FaultsTest, KillsOfRolloutRewardTrainerAndControllerInTurnDoNotEndTheJob) {
  ASSERT_NO_FATAL_FAILURE(StartJob({.rollouts = 2}, {"resources.rollout.max=2"}, 2 * kSteps));
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("rollout-1"));
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("reward-0"));
  ASSERT_NO_FATAL_FAILURE(KillAt("trainer-0", "trainer.step.before_apply", 1));
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("controller-0"));
  ExpectGoesOn();
}

TEST_F(FaultsTest, AKilledQueueDoesNotSendTheTrainerBack) {
  ASSERT_NO_FATAL_FAILURE(StartJob({}, {}, kSteps));
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("queue-0"));
  const job::v1::JobStatus end = ExpectGoesOn();
  EXPECT_EQ(end.result().restarts().at("queue"), 1);
  EXPECT_EQ(end.incarnation(), 1);
}

// A daemon that sleeps through its lease is fenced when it wakes, and does no harm.
TEST_F(FaultsTest, ASleepingTrainerThatWasReplacedIsFenced) {
  ASSERT_NO_FATAL_FAILURE(StartJob());
  ASSERT_EQ(job_->AwaitStep(kBefore, kLong), absl::OkStatus());
  cluster_->Signal("trainer-0", SIGSTOP);
  RecordFault();
  ASSERT_EQ(job_->AwaitState(job::v1::JOB_STATE_RECOVERING, kLong), absl::OkStatus());
  cluster_->Signal("trainer-0", SIGCONT);

  const job::v1::JobStatus end = ExpectGoesOn();
  EXPECT_GE(end.incarnation(), 2);
}

TEST_F(FaultsTest, ASleepingRolloutThatWasReplacedHarmsNothing) {
  ASSERT_NO_FATAL_FAILURE(StartJob({.rollouts = 2}, {"resources.rollout.max=2"}));
  ASSERT_EQ(job_->AwaitStep(kBefore, kLong), absl::OkStatus());
  cluster_->Signal("rollout-0", SIGSTOP);
  ASSERT_EQ(job_->AwaitEvent("daemon_lost", kLong), absl::OkStatus());
  RecordFault();
  ASSERT_EQ(job_->AwaitStep(fault_step_ + kBefore, kLong), absl::OkStatus());
  cluster_->Signal("rollout-0", SIGCONT);
  RecordFault();

  ExpectGoesOn();
}

// Nobody takes over the work of the only daemon of its role, so it has to go on itself.
class SleepingDaemonTest : public FaultsTest, public testing::WithParamInterface<const char*> {};

TEST_P(SleepingDaemonTest, WakesAndWorksAgainThoughItWasGivenUp) {
  ASSERT_NO_FATAL_FAILURE(StartJob());
  ASSERT_EQ(job_->AwaitStep(kBefore, kLong), absl::OkStatus());
  cluster_->Signal(GetParam(), SIGSTOP);
  ASSERT_EQ(job_->AwaitEvent("daemon_lost", kLong), absl::OkStatus());
  cluster_->Signal(GetParam(), SIGCONT);
  RecordFault();
  ExpectGoesOn();
}

INSTANTIATE_TEST_SUITE_P(Of, SleepingDaemonTest, testing::Values("rollout-0", "reward-0"));

TEST_F(FaultsTest, ABitFlippedInAnEngineKeepsTheOldVersionServing) {
  ASSERT_NO_FATAL_FAILURE(StartJob());
  ASSERT_EQ(job_->AwaitStep(kBefore, kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Arm("rollout-0", "rollout.activate.bitflip", "error", 1), absl::OkStatus());
  RecordFault();

  ExpectGoesOn();
  EXPECT_NE(cluster_->Log("rollout-0").find("weights_refused"), std::string::npos)
      << "no bit was flipped";
}

}  // namespace
}  // namespace sluice::integration
