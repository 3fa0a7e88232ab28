#include <gmock/gmock.h>

#include "tests/services/controller/world.h"

// Jobs whose trainer has two ranks: trainer-0 is rank 0.
namespace sluice::controller {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class RanksTest : public testing::Test {
 protected:
  RanksTest() {
    world_.StartFleet();
    world_.Start("trainer-1", Role::kTrainer);
    Needs needs = World::DefaultNeeds();
    needs.trainers = {2, 2};
    job_ = world_.Run("digits", needs);
  }

  const DaemonAssignment& AssignmentOf(const std::string& daemon) {
    EXPECT_THAT(world_.actors[daemon].desired.assignments, SizeIs(1)) << daemon;
    return world_.actors[daemon].desired.assignments.at(0);
  }
  int Restarts() {
    const auto& restarts = world_.job(job_).record.restarts;
    const auto found = restarts.find("trainer");
    return found == restarts.end() ? 0 : found->second;
  }

  World world_;
  std::string job_;
};

TEST_F(RanksTest, EachRankIsToldItsNumberAndWhereToMeet) {
  EXPECT_EQ(AssignmentOf("trainer-0").rank, 0u);
  EXPECT_EQ(AssignmentOf("trainer-1").rank, 1u);
  for (const char* id : {"trainer-0", "trainer-1"}) {
    EXPECT_EQ(AssignmentOf(id).world, 2u);
    EXPECT_EQ(AssignmentOf(id).rendezvous, "trainer-0:1");
    EXPECT_EQ(AssignmentOf(id).incarnation, 1);
  }
}

// Rank 1 knows no versions, so its progress has none.
TEST_F(RanksTest, OnlyRankZeroSaysHowFarTheJobIs) {
  world_.actors["trainer-0"].progress[job_].step = 7;
  world_.actors["trainer-0"].progress[job_].version = {1, 7};
  world_.actors["trainer-1"].progress[job_].step = 0;
  world_.actors["trainer-1"].progress[job_].version = {};
  world_.Settle();
  EXPECT_EQ(world_.job(job_).record.step, 7);
  EXPECT_EQ(world_.job(job_).record.version, (PolicyVersion{1, 7}));
  world_.actors["trainer-1"].progress[job_].step = 9;
  world_.Settle();
  EXPECT_EQ(world_.job(job_).record.step, 7);
}

// Rank 0 is lost while it loads, and rank 1, which has loaded nothing, is ready at once.
TEST_F(RanksTest, ALossOfRankZeroWhileItLoadsErasesNoSteps) {
  for (int64_t k = 0; k < 3; ++k) world_.Step(job_, k);
  world_.Kill("trainer-1");
  world_.Pass(absl::Seconds(15));
  for (auto& [id, actor] : world_.actors) {
    if (actor.role == Role::kTrainer) actor.progress.erase(job_);
  }
  world_.Start("trainer-1", Role::kTrainer);
  world_.Settle();
  ASSERT_EQ(AssignmentOf("trainer-1").incarnation, 2);
  Progress& progress = world_.actors["trainer-1"].progress[job_];
  progress.job = job_;
  progress.incarnation = 2;
  progress.ready = true;
  world_.Kill("trainer-0");
  world_.Settle();
  EXPECT_EQ(world_.job(job_).steps.size(), 3u);
}

TEST_F(RanksTest, ARankThatDiesEndsTheGroupAndIsOneRestart) {
  for (const bool told_first : {false, true}) {
    const int before = Restarts();
    const int64_t incarnation = world_.job(job_).assign.trainer_incarnation;
    if (told_first) world_.Say("trainer-0", job_, "restore", "rank 0 of 2 lost another rank");
    world_.Kill("trainer-1");
    world_.Pass(absl::Seconds(15));
    EXPECT_EQ(world_.State(job_), JobState::kRecovering);
    EXPECT_THAT(world_.actors["trainer-0"].desired.assignments, IsEmpty());
    // A group that was formed with the dead rank meanwhile is another restart.
    EXPECT_EQ(Restarts(), before + (told_first ? 2 : 1));

    world_.actors["trainer-0"].progress.erase(job_);
    world_.Start("trainer-1", Role::kTrainer);
    world_.AllReady(job_);
    EXPECT_EQ(world_.State(job_), JobState::kRunning);
    EXPECT_GT(world_.job(job_).assign.trainer_incarnation, incarnation);
    EXPECT_EQ(AssignmentOf("trainer-0").incarnation, AssignmentOf("trainer-1").incarnation);
  }
}

TEST_F(RanksTest, AllRanksLeaveWithACheckpointWhenOneIsDrained) {
  for (const std::string drained : {"trainer-1", "trainer-0"}) {
    ASSERT_EQ(world_.core->Drain(world_.now(), drained, true), absl::OkStatus());
    world_.Settle();
    for (const char* id : {"trainer-0", "trainer-1"}) {
      EXPECT_EQ(AssignmentOf(id).phase, AssignmentPhase::kHold) << id;
      EXPECT_TRUE(AssignmentOf(id).checkpoint) << id;
    }
    const int64_t incarnation = world_.job(job_).assign.trainer_incarnation;
    world_.Leave();
    EXPECT_EQ(world_.State(job_), JobState::kRecovering);
    EXPECT_EQ(Restarts(), 0) << "a drain is no restart";

    ASSERT_EQ(world_.core->Drain(world_.now(), drained, false), absl::OkStatus());
    world_.AllReady(job_);
    EXPECT_EQ(world_.State(job_), JobState::kRunning);
    EXPECT_EQ(world_.job(job_).assign.trainer_incarnation, incarnation + 1);
  }
}

// As after SIGTERM: the daemon says so itself.
TEST_F(RanksTest, ATrainerThatDrainsMakesTheOthersLeaveToo) {
  world_.actors["trainer-1"].draining = true;
  world_.Settle();
  EXPECT_EQ(AssignmentOf("trainer-0").phase, AssignmentPhase::kHold);
  EXPECT_TRUE(AssignmentOf("trainer-0").checkpoint);
  world_.Leave();
  world_.Kill("trainer-1");
  world_.Settle();
  EXPECT_EQ(world_.State(job_), JobState::kRecovering);
  EXPECT_EQ(Restarts(), 0);
  world_.Start("trainer-1", Role::kTrainer);
  world_.AllReady(job_);
  EXPECT_EQ(world_.State(job_), JobState::kRunning);
  EXPECT_EQ(world_.job(job_).assign.trainer_incarnation, 2);
}

}  // namespace
}  // namespace sluice::controller
