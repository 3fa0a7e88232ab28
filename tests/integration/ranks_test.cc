#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "tests/integration/faults.h"
#include "tests/integration/harness/redis_server.h"

// Jobs whose trainer has two ranks: trainer-0 is rank 0.
namespace sluice::integration {
namespace {

class RanksTest : public FaultsTest {
 protected:
  // `ports` are those of each trainer's --collective-ports.
  void StartRanks(int steps, const std::string& ports = "",
                  const std::string& shard = "optimizer") {
    ClusterOptions options{.trainers = 2};
    for (const char* trainer : {"trainer-0", "trainer-1"})
      if (!ports.empty()) options.args[trainer] = {"--collective-ports", ports};
    ASSERT_NO_FATAL_FAILURE(StartJob(
        std::move(options), {"resources.trainer=2", absl::StrCat("trainer.shard=", shard)}, steps));
  }
};

TEST_F(RanksTest, TwoRanksTrainAJobToItsEnd) {
  ASSERT_NO_FATAL_FAILURE(StartRanks(kSteps, "29500-29600"));
  const auto end = job_->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(end->result().steps(), kSteps);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
  EXPECT_EQ(end->incarnation(), 1);
}

// Each of the two ranks needs two ports.
TEST_F(RanksTest, RanksWithTooFewPortsFailTheJobAndNameTheFlag) {
  ASSERT_NO_FATAL_FAILURE(StartRanks(kSteps, absl::StrCat(FindFreePort())));
  const auto end = job_->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_FAILED) << Text(*end);
  EXPECT_THAT(end->DebugString(), testing::HasSubstr("--collective-ports"));
}

class RankKillTest : public RanksTest, public testing::WithParamInterface<const char*> {};

TEST_P(RankKillTest, AKilledRankBringsTheGroupBackFromItsCheckpoint) {
  for (const char* rank : {"trainer-1", "trainer-0"}) {
    SCOPED_TRACE(rank);
    if (job_ == nullptr) ASSERT_NO_FATAL_FAILURE(StartRanks(3 * kSteps, "", GetParam()));
    ASSERT_NO_FATAL_FAILURE(KillAndRestart(rank));
  }
  const job::v1::JobStatus end = ExpectGoesOn();
  // A kill counts twice if rank 0 says that it lost a rank before the controller hears of its end.
  EXPECT_GE(end.result().restarts().at("trainer"), 2);
  EXPECT_LE(end.result().restarts().at("trainer"), 4);
}

INSTANTIATE_TEST_SUITE_P(Of, RankKillTest, testing::Values("optimizer", "gradients", "parameters"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(RanksTest, AStoppedRankIsReplacedByAnotherTrainer) {
  // A rank that is stopped while numbers are moved holds the others for this long.
  ASSERT_NO_FATAL_FAILURE(
      StartJob({.trainers = 3}, {"resources.trainer=2", "trainer.parallel.collective_timeout=20s"},
               2 * kSteps));
  ASSERT_EQ(job_->AwaitStep(kBefore, kLong), absl::OkStatus());
  cluster_->Signal("trainer-1", SIGSTOP);
  RecordFault();
  ExpectGoesOn();
  cluster_->Signal("trainer-1", SIGCONT);
}

class RankDrainTest : public RanksTest, public testing::WithParamInterface<const char*> {};

TEST_P(RankDrainTest, ARankLeavesWithACheckpointAndAnotherTrainerTakesItsPlace) {
  ASSERT_NO_FATAL_FAILURE(StartJob({.trainers = 3}, {"resources.trainer=2"}, 2 * kSteps));
  ASSERT_EQ(job_->AwaitStep(kBefore, kLong), absl::OkStatus());
  const auto code = cluster_->Terminate(GetParam(), kLong);
  ASSERT_EQ(code.status(), absl::OkStatus());
  EXPECT_EQ(*code, 0);
  RecordFault();
  const job::v1::JobStatus end = ExpectGoesOn();
  EXPECT_EQ(end.result().restarts().at("trainer"), 0) << "a drain is no restart";
  EXPECT_EQ(end.incarnation(), 2);
}

INSTANTIATE_TEST_SUITE_P(Of, RankDrainTest, testing::Values("trainer-0", "trainer-1"),
                         [](const auto& info) {
                           return absl::StrCat("rank", std::string(info.param).back() - '0');
                         });

TEST_F(RanksTest, APausedGroupGoesOnFromItsCheckpoint) {
  ASSERT_NO_FATAL_FAILURE(StartRanks(2 * kSteps));
  ASSERT_EQ(job_->AwaitStep(kBefore, kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Sluice({"job", "pause", job_->id()}).status(), absl::OkStatus());
  ASSERT_EQ(job_->AwaitState(job::v1::JOB_STATE_PAUSED, kLong), absl::OkStatus());
  RecordFault();
  const auto resumed = cluster_->Sluice({"job", "resume", job_->id()});
  ASSERT_EQ(resumed.status(), absl::OkStatus());
  EXPECT_EQ(resumed->exit, 0) << resumed->err;
  ExpectGoesOn();
}

}  // namespace
}  // namespace sluice::integration
