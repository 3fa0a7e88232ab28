#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "tests/integration/faults.h"
#include "tests/integration/harness/versions.h"

// The queue dies while a job runs, at each level of durability. The table says where each sequence
// of calls that involves the queue is tested; `core` is tests/services/queue/core, `lifecycle` is
// tests/services/controller/lifecycle_test.cc, and `here` is this file.
//
//   job start                          loop_test
//   one group                          core/put_test, core/tasks_test, core/batch_test; loop_test
//   streaming step, max_staleness 0    core/batch_test; staleness_test
//   publication                        tests/services/rollout/session_test; faults_test (a bit
//                                      flipped)
//   a rollout dies                     prefix_test; faults_test
//   a trainer rank dies: replay        core/restore_test; faults_test; here:
//                                      AReplayGivesTheSameWeights
//   .. requeue, an older checkpoint    core/restore_test; here: ATrainerThatRequeues..,
//                                      ADamagedCheckpoint..
//   .. two trainers alive              here: TwoTrainersAlive..
//   the queue restarts, from its log   lifecycle (AQueueThatGoesOnFromItsLog..); here, levels full
//                                      and metadata
//   .. its payload gone                tests/services/rollout/trajectory_test; here, level metadata
//   .. the job lost                    core/restore_test, lifecycle (AQueueThatHasLostTheJob..);
//                                      here, level memory, and ALostDirectory..
//   the controller restarts            tests/services/controller/restart_test; faults_test
//   drain                              drain_test
//   cancel, end                        lifecycle; methods_test
namespace sluice::integration {
namespace {

bool HasEvent(const Job& job, const std::string& code) {
  const std::vector<common::v1::Event> events = job.events();
  return std::any_of(events.begin(), events.end(),
                     [&](const common::v1::Event& event) { return event.code() == code; });
}

// Truncates the weights of the newest checkpoint that the job has reported, and of one that it
// could not report any more.
void DamageNewestCheckpoint(const Job& job) {
  std::filesystem::path told;
  for (const common::v1::Event& event : job.events()) {
    if (event.code() == "checkpoint") told = event.message();
  }
  ASSERT_FALSE(told.empty()) << "no checkpoint yet";

  const auto written = std::filesystem::last_write_time(told);
  for (const auto& entry : std::filesystem::directory_iterator(told.parent_path())) {
    const std::filesystem::path weights = entry.path() / "model.safetensors";
    if (std::filesystem::exists(weights) && std::filesystem::last_write_time(entry) >= written)
      std::filesystem::resize_file(weights, 100);
  }
}

class QueueRestartTest : public FaultsTest, public testing::WithParamInterface<std::string> {
 protected:
  void StartJobAtLevel() {
    StartJob({},
             {absl::StrCat("queue.keep.durability=", GetParam()), "limits.restarts_per_hour=20"});
  }

  // At level memory, a trainer that goes back gets the next incarnation. Waits for that, because a
  // step from before the fault may be reported after it, and would prove nothing.
  void AwaitNextTrainerGroup() {
    if (GetParam() != "memory") return;
    const int64_t next = ++trainer_incarnation_;
    ASSERT_EQ(
        job_->AwaitStatus(
            [&](const job::v1::JobStatus& status) { return status.incarnation() == next; }, kLong),
        absl::OkStatus());
  }

  // The job goes on until it is cancelled, and its result is that of a job whose queue died `times`
  // times.
  void ExpectRecovered(int times) {
    const job::v1::JobStatus end = ExpectGoesOn();
    EXPECT_EQ(end.result().restarts().at("queue"), times);
    if (GetParam() == "full") {
      const auto& dropped = end.result().ledger().dropped();
      EXPECT_TRUE(!dropped.contains("lost") || dropped.at("lost") == 0)
          << "acknowledged work was lost: " << Text(end);
      EXPECT_EQ(end.incarnation(), 1) << "the trainer went back";
    }
    if (GetParam() == "memory") {
      EXPECT_EQ(end.incarnation(), 1 + times);
    }
  }

  int64_t trainer_incarnation_ = 1;
};

TEST_P(QueueRestartTest, TheJobGoesOnAfterItsQueueIsKilled) {
  ASSERT_NO_FATAL_FAILURE(StartJobAtLevel());
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("queue-0"));
  ExpectRecovered(1);
}

TEST_P(QueueRestartTest, TheJobGoesOnWhicheverCallItsQueueIsKilledIn) {
  ASSERT_NO_FATAL_FAILURE(StartJobAtLevel());
  const char* const calls[] = {"admit",   "put",   "seal",   "lease_tasks",
                               "acquire", "apply", "durable"};
  SplitMix64 random(1);
  for (const char* call : calls) {
    ASSERT_NO_FATAL_FAILURE(KillAt(
        "queue-0", absl::StrCat("queue.", call, random.Below(2) == 0 ? ".before" : ".after"), 1));
    ASSERT_NO_FATAL_FAILURE(AwaitNextTrainerGroup());
  }

  ExpectRecovered(static_cast<int>(std::size(calls)));
}

TEST_P(QueueRestartTest, TheJobGoesOnAfterKillsOfItsQueueAndTheOtherDaemonsInTurn) {
  ASSERT_NO_FATAL_FAILURE(StartJobAtLevel());
  for (const char* id : {"queue-0", "rollout-0", "queue-0", "reward-0", "queue-0", "trainer-0",
                         "queue-0", "controller-0", "queue-0"}) {
    ASSERT_NO_FATAL_FAILURE(KillAndRestart(id));
  }

  const auto restarts = ExpectGoesOn().result().restarts();
  EXPECT_EQ(restarts.at("queue"), 5);
  for (const char* role : {"rollout", "reward"}) EXPECT_EQ(restarts.at(role), 1) << role;
  EXPECT_GE(restarts.at("trainer"), 1) << "at level metadata also where it asked for a restore";
}

TEST_P(QueueRestartTest, TheJobGoesOnAfterItsQueueAndTrainerAreKilledAtOnce) {
  ASSERT_NO_FATAL_FAILURE(StartJobAtLevel());
  ASSERT_EQ(job_->AwaitStep(kBefore, kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Kill("trainer-0"), absl::OkStatus());
  ASSERT_EQ(cluster_->Kill("queue-0"), absl::OkStatus());
  RecordFault();
  ASSERT_EQ(cluster_->Start("queue-0"), absl::OkStatus());
  ASSERT_EQ(cluster_->Start("trainer-0"), absl::OkStatus());

  const job::v1::JobStatus end = ExpectGoesOn();
  EXPECT_EQ(end.result().restarts().at("queue"), 1);
  EXPECT_EQ(end.result().restarts().at("trainer"), 1);
}

TEST_P(QueueRestartTest, ALostDirectorySendsTheTrainerBackToItsCheckpoint) {
  ASSERT_NO_FATAL_FAILURE(StartJobAtLevel());
  ASSERT_EQ(job_->AwaitStep(kBefore, kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Kill("queue-0"), absl::OkStatus());
  RecordFault();
  ASSERT_EQ(cluster_->RemoveData("queue-0"), absl::OkStatus());
  ASSERT_EQ(cluster_->Start("queue-0"), absl::OkStatus());
  EXPECT_EQ(ExpectGoesOn().incarnation(), 2);
}

INSTANTIATE_TEST_SUITE_P(At, QueueRestartTest, testing::Values("memory", "metadata", "full"),
                         [](const auto& info) { return info.param; });

// A score that was told before the kill decides about the second wave once, and after it again the
// same way.
TEST_F(FaultsTest, AJobWithWavesGoesOnWhicheverCallItsQueueIsKilledIn) {
  ASSERT_NO_FATAL_FAILURE(
      StartJob({}, {"rollout.group.size=6", "rollout.group.min=2", "rollout.group.first_wave=2",
                    "limits.restarts_per_hour=20"}));
  for (const char* call : {"put", "admit", "seal", "lease_tasks"}) {
    for (const char* where : {".before", ".after"})
      ASSERT_NO_FATAL_FAILURE(KillAt("queue-0", absl::StrCat("queue.", call, where), 3));
  }
  const job::v1::JobStatus end = ExpectGoesOn();
  EXPECT_EQ(end.result().restarts().at("queue"), 8);
  const auto& dropped = end.result().ledger().dropped();
  EXPECT_TRUE(!dropped.contains("lost") || dropped.at("lost") == 0) << Text(end);
}

// What the old trainer group published, the new one publishes again, bit for bit, until it is
// beyond that. Steps are large here, so that the watch misses few versions.
TEST_F(FaultsTest, AReplayGivesTheSameWeights) {
  ASSERT_NO_FATAL_FAILURE(StartJob({}, {"checkpoint.every_steps=20", "queue.groups_per_step=32"}));
  PublishedVersions published(cluster_.get(), "trainer-0", job_->id());
  ASSERT_EQ(job_->AwaitStep(10, kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Kill("trainer-0"), absl::OkStatus());
  RecordFault();
  ASSERT_EQ(cluster_->Start("trainer-0"), absl::OkStatus());
  ExpectGoesOn();

  int compared = 0;
  for (const auto& [number, by_incarnation] : published.seen()) {
    if (by_incarnation.size() < 2) continue;
    ++compared;
    for (const auto& [trainer_incarnation, state] : by_incarnation)
      EXPECT_EQ(state, by_incarnation.begin()->second)
          << "version " << number << " of trainer group " << trainer_incarnation;
  }

  EXPECT_GE(compared, 1);
}

TEST_F(FaultsTest, ATrainerThatRequeuesTrainsOnANewBranch) {
  ASSERT_NO_FATAL_FAILURE(StartJob({}, {"queue.keep.restore=requeue"}));
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("trainer-0"));
  EXPECT_EQ(ExpectGoesOn().incarnation(), 2);
}

TEST_F(FaultsTest, ADamagedCheckpointIsSaidAndTheOneBeforeIsTaken) {
  // All checkpoints are kept, so that there is one before any that is reported late.
  ASSERT_NO_FATAL_FAILURE(StartJob({}, {"checkpoint.keep_last=1000"}));
  ASSERT_EQ(job_->AwaitStep(2 * kBefore, kLong), absl::OkStatus());
  ASSERT_EQ(cluster_->Kill("trainer-0"), absl::OkStatus());
  RecordFault();
  ASSERT_NO_FATAL_FAILURE(DamageNewestCheckpoint(*job_));
  ASSERT_EQ(cluster_->Start("trainer-0"), absl::OkStatus());

  ExpectGoesOn(/*gave_up_durable_steps=*/true);
  EXPECT_TRUE(HasEvent(*job_, "checkpoint_damaged"));
}

// The first trainer sleeps through its lease while the second one works. When it wakes it is
// fenced, and does no harm.
TEST_F(FaultsTest, TwoTrainersAliveAndTheOldOneHarmsNothing) {
  ASSERT_NO_FATAL_FAILURE(StartJob({.trainers = 2}));
  ASSERT_EQ(job_->AwaitStep(kBefore, kLong), absl::OkStatus());
  const job::v1::JobStatus before = job_->status();
  const std::string old =
      std::count(before.daemons().begin(), before.daemons().end(), "trainer-0") > 0 ? "trainer-0"
                                                                                    : "trainer-1";

  cluster_->Signal(old, SIGSTOP);
  RecordFault();
  ASSERT_EQ(job_->AwaitStatus(
                [](const job::v1::JobStatus& status) { return status.incarnation() == 2; }, kLong),
            absl::OkStatus());
  ASSERT_EQ(job_->AwaitStep(fault_step_ + kBefore, kLong), absl::OkStatus());
  cluster_->Signal(old, SIGCONT);
  RecordFault();

  EXPECT_EQ(ExpectGoesOn().incarnation(), 2);
}

}  // namespace
}  // namespace sluice::integration
