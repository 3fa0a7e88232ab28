#include <gmock/gmock.h>

#include "tests/services/controller/world.h"

// Daemons that leave a job which goes on.
namespace sluice::controller {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LeavingTest : public testing::Test {
 protected:
  LeavingTest() { world_.StartFleet(2); }

  void Drain(const std::string& daemon, bool on = true) {
    ASSERT_EQ(world_.core->Drain(world_.now(), daemon, on), absl::OkStatus());
    world_.Settle();
  }

  const std::vector<DaemonAssignment>& AssignmentsOf(const std::string& daemon) {
    return world_.actors[daemon].desired.assignments;
  }

  std::vector<std::string> WorkersOf(const std::string& job) {
    std::vector<std::string> ids;
    for (const Worker& worker : world_.job(job).assign.workers) ids.push_back(worker.id);
    return ids;
  }

  World world_;
};

TEST_F(LeavingTest, ADrainedRolloutHandsOverAndStaysListedUntilItHasLeft) {
  const std::string job = world_.Run("digits");
  Drain("rollout-0");
  ASSERT_THAT(AssignmentsOf("rollout-0"), SizeIs(1));
  EXPECT_EQ(AssignmentsOf("rollout-0")[0].phase, AssignmentPhase::kHold);
  EXPECT_THAT(world_.history.back().workers, SizeIs(4)) << "it still gives back its leases";
  EXPECT_EQ(world_.State(job), JobState::kRunning);

  world_.Leave();
  EXPECT_THAT(WorkersOf(job), ElementsAre("reward-0", "rollout-1", "trainer-0"));
  EXPECT_THAT(world_.history.back().workers, SizeIs(3));
  EXPECT_THAT(AssignmentsOf("rollout-0"), IsEmpty());
  EXPECT_EQ(world_.job(job).record.restarts.count("rollout"), 0u);
  EXPECT_THAT(world_.releases, IsEmpty());
}

TEST_F(LeavingTest, ADrainedTrainerWritesACheckpointAndTheNextGroupIsFormedOnceItHasLeft) {
  const std::string job = world_.Run("digits");
  world_.Step(job, 0);
  world_.Start("trainer-1", Role::kTrainer);
  Drain("trainer-0");
  ASSERT_THAT(AssignmentsOf("trainer-0"), SizeIs(1));
  EXPECT_EQ(AssignmentsOf("trainer-0")[0].phase, AssignmentPhase::kHold);
  EXPECT_TRUE(AssignmentsOf("trainer-0")[0].checkpoint);
  EXPECT_THAT(AssignmentsOf("trainer-1"), IsEmpty());
  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 1) << "it may still end its step";
  world_.Say("trainer-0", job, "failed", "is no failure of the job");
  EXPECT_NE(world_.State(job), JobState::kFinishing);

  world_.Leave();
  world_.AllReady(job);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 2);
  EXPECT_THAT(AssignmentsOf("trainer-1"), SizeIs(1));
  EXPECT_THAT(AssignmentsOf("trainer-0"), IsEmpty());
}

TEST_F(LeavingTest, AJobWithoutAnotherTrainerWaitsUntilTheDrainIsEnded) {
  const std::string job = world_.Run("digits");
  Drain("trainer-0");
  world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kRecovering);
  Drain("trainer-0", false);
  world_.AllReady(job);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
}

TEST_F(LeavingTest, ADrainOutlivesTheControllerAndTheDaemon) {
  const std::string job = world_.Run("digits");
  Drain("rollout-0");
  world_.Restart();
  for (auto& [id, actor] : world_.actors) ASSERT_TRUE(world_.Reregister(id).ok());
  world_.Settle();
  EXPECT_EQ(AssignmentsOf("rollout-0").at(0).phase, AssignmentPhase::kHold);
  world_.Leave();

  world_.Kill("rollout-0");
  world_.Start("rollout-0", Role::kRollout);
  world_.Settle();
  EXPECT_THAT(AssignmentsOf("rollout-0"), IsEmpty());
  Drain("rollout-0", false);
  EXPECT_THAT(AssignmentsOf("rollout-0"), SizeIs(1));
  EXPECT_THAT(WorkersOf(job), SizeIs(4));
}

TEST_F(LeavingTest, ADrainedQueueKeepsItsJobsAndGetsNoFurtherOne) {
  Needs needs = World::DefaultNeeds();
  needs.rollouts = {1, 2};
  const std::string job = world_.Run("first", needs);
  world_.Start("queue-1", Role::kQueue);
  world_.Start("trainer-1", Role::kTrainer);
  world_.Start("rollout-2", Role::kRollout);
  Drain("queue-0");
  EXPECT_EQ(world_.State(job), JobState::kRunning);
  const std::string second = world_.Submit("second");
  EXPECT_EQ(world_.job(second).assign.queue, "queue-1");
}

TEST_F(LeavingTest, ALeavingDaemonThatDiesIsReleasedAndIsNoRestart) {
  const std::string job = world_.Run("digits");
  Drain("rollout-0");
  world_.Kill("rollout-0");
  world_.Pass(absl::Seconds(5));
  EXPECT_THAT(WorkersOf(job), SizeIs(3));
  ASSERT_THAT(world_.releases, SizeIs(1));
  EXPECT_EQ(world_.releases[0].worker, "rollout-0");
  EXPECT_EQ(world_.job(job).record.restarts.count("rollout"), 0u);
}

TEST_F(LeavingTest, AJobMayEndOrBePausedWhileADaemonLeaves) {
  const std::string job = world_.Run("digits");
  Drain("rollout-0");
  ASSERT_TRUE(world_.core->Pause(world_.now(), job).ok());
  world_.Leave();
  world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kPaused);

  const std::string other = world_.Run("other");
  Drain("rollout-1");
  ASSERT_TRUE(world_.core->Cancel(world_.now(), other, true).ok());
  world_.Settle();
  EXPECT_EQ(AssignmentsOf("rollout-1").at(0).phase, AssignmentPhase::kStop);
  world_.Leave();
  EXPECT_EQ(world_.State(other), JobState::kCancelled);
}

TEST_F(LeavingTest, AnUnknownDaemonCannotBeDrained) {
  EXPECT_EQ(ReasonOf(world_.core->Drain(world_.now(), "rollout-9", true)), "DAEMON");
}

}  // namespace
}  // namespace sluice::controller
