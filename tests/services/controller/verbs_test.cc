#include <gmock/gmock.h>

#include "tests/services/controller/world.h"

namespace sluice::controller {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class VerbsTest : public testing::Test {
 protected:
  VerbsTest() { world_.StartFleet(2); }

  // Pauses a job that runs, and lets all daemons leave.
  void Pause(const std::string& job) {
    ASSERT_EQ(*world_.core->Pause(world_.now(), job), false);
    world_.Leave();
    world_.Leave();
    ASSERT_EQ(world_.State(job), JobState::kPaused);
  }

  // A job that was cancelled after two steps and is over.
  std::string CancelledJob(const std::string& name) {
    const std::string job = world_.Run(name);
    world_.Step(job, 0);
    world_.Step(job, 1);
    EXPECT_EQ(*world_.core->Cancel(world_.now(), job, true), false);
    world_.Leave();
    world_.Leave();
    EXPECT_EQ(world_.State(job), JobState::kCancelled);
    EXPECT_EQ(world_.job(job).record.stage, Stage::kOver);
    return job;
  }

  absl::StatusOr<bool> Retry(const std::string& job, int64_t incarnation) {
    const absl::StatusOr<bool> repeat =
        world_.core->Retry(world_.now(), {job, incarnation, *ReadStoredJob(world_.store(), job)});
    world_.Settle();
    return repeat;
  }

  absl::Status Delete(const std::string& job) {
    const std::string id = (*world_.core->Find(job))->record.id;
    std::vector<std::string> keys;
    const std::vector<meta::Entry> entries = *world_.store()->List(JobKey(id, ""));
    for (const meta::Entry& entry : entries) keys.push_back(entry.key);
    const absl::Status status = world_.core->Delete(job, keys);
    world_.Settle();
    return status;
  }

  const DaemonAssignment& AssignmentOf(const std::string& daemon) {
    return world_.actors[daemon].desired.assignments.at(0);
  }

  World world_;
};

TEST_F(VerbsTest, APauseEndsTheStepWithACheckpointAndThenTakesAllDaemonsAway) {
  const std::string job = world_.Run("digits");
  world_.Step(job, 0);
  EXPECT_EQ(*world_.core->Pause(world_.now(), "digits"), false);
  world_.Settle();

  EXPECT_EQ(world_.State(job), JobState::kPausing);
  EXPECT_EQ(world_.history.back().phase, QueuePhase::kHold);
  EXPECT_EQ(AssignmentOf("trainer-0").phase, AssignmentPhase::kHold);
  EXPECT_TRUE(AssignmentOf("trainer-0").checkpoint);
  EXPECT_EQ(AssignmentOf("rollout-0").phase, AssignmentPhase::kRun)
      << "the step under way may still need answers";

  world_.Leave();
  EXPECT_EQ(AssignmentOf("rollout-0").phase, AssignmentPhase::kHold);
  EXPECT_EQ(AssignmentOf("reward-0").phase, AssignmentPhase::kHold);

  world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kPaused);
  EXPECT_THAT(world_.history.back().workers, IsEmpty());
  EXPECT_EQ(world_.history.back().phase, QueuePhase::kHold) << "the queue keeps the live work";
  for (const char* daemon : {"trainer-0", "rollout-0", "rollout-1", "reward-0"})
    EXPECT_THAT(world_.actors[daemon].desired.assignments, IsEmpty());
  EXPECT_EQ(*world_.core->Pause(world_.now(), job), true);
}

TEST_F(VerbsTest, AnotherJobGetsTheDaemonsOfAPausedOneWhichWaitsForThemOnceItIsResumed) {
  const std::string paused = world_.Run("first");
  Pause(paused);
  const std::string other = world_.Run("second");
  EXPECT_EQ(*world_.core->Resume(world_.now(), "first"), false);
  world_.Settle();
  EXPECT_EQ(world_.State(paused), JobState::kWaiting);
  EXPECT_THAT(world_.job(paused).record.message, HasSubstr("1 of 1 trainer"));

  ASSERT_TRUE(world_.core->Cancel(world_.now(), other, true).ok());
  world_.Leave();
  world_.Leave();
  world_.AllReady(paused);
  EXPECT_EQ(world_.State(paused), JobState::kRunning);
}

TEST_F(VerbsTest, AResumedJobGoesOnWithTheNextStepUnderTheNextIncarnation) {
  const std::string job = world_.Run("digits");
  world_.Step(job, 0);
  Pause(job);
  EXPECT_EQ(*world_.core->Resume(world_.now(), job), false);
  world_.actors["trainer-0"].progress[job].step = 1;  // It goes on from the pause's checkpoint.
  world_.AllReady(job);

  EXPECT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 2);
  EXPECT_EQ(world_.history.back().phase, QueuePhase::kOpen);
  EXPECT_THAT(world_.history.back().workers, SizeIs(4));
  EXPECT_EQ(*world_.core->Resume(world_.now(), job), true);

  world_.Step(job, 1);
  EXPECT_EQ(world_.job(job).record.step, 2);
  EXPECT_THAT(world_.job(job).steps, SizeIs(2)) << "no step is trained again";
}

TEST_F(VerbsTest, APauseIsNoRunningTime) {
  Needs needs = World::DefaultNeeds();
  needs.wall = absl::Minutes(10);
  const std::string job = world_.Run("digits", needs);
  world_.Step(job, 0);
  world_.Pass(absl::Minutes(4), absl::Seconds(2));
  Pause(job);
  world_.Pass(absl::Hours(1), absl::Minutes(1));
  const double paused = Controller::Seconds(world_.job(job), world_.clock.Now());
  EXPECT_NEAR(paused, 240, 5);

  ASSERT_TRUE(world_.core->Resume(world_.now(), job).ok());
  world_.AllReady(job);
  world_.Step(job, 1);
  world_.Pass(absl::Minutes(5), absl::Seconds(2));
  EXPECT_EQ(world_.State(job), JobState::kRunning);
  world_.Pass(absl::Minutes(2), absl::Seconds(2));
  EXPECT_EQ(world_.State(job), JobState::kFinishing) << "limits.wall has passed";
}

TEST_F(VerbsTest, AControllerThatIsStartedAnewGoesOnWithAPause) {
  const std::string job = world_.Run("digits");
  ASSERT_TRUE(world_.core->Pause(world_.now(), job).ok());
  world_.Settle();
  const auto restart = [&] {
    world_.Restart();
    for (auto& [id, actor] : world_.actors) ASSERT_TRUE(world_.Reregister(id).ok());
    world_.Settle();
  };

  restart();
  EXPECT_EQ(world_.State(job), JobState::kPausing);
  world_.Leave();
  restart();
  EXPECT_EQ(world_.State(job), JobState::kPausing);
  world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kPaused);

  restart();
  EXPECT_EQ(world_.State(job), JobState::kPaused);
  EXPECT_THAT(world_.job(job).record.restarts, IsEmpty()) << "a paused job does not run";
  ASSERT_TRUE(world_.core->Resume(world_.now(), job).ok());
  world_.Settle();
  restart();
  world_.AllReady(job);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
}

TEST_F(VerbsTest, AWaitingJobIsPausedAtOnceAndDoesNotStart) {
  Needs needs = World::DefaultNeeds();
  needs.rollouts = {3, 3};
  const std::string job = world_.Submit("large", needs);
  EXPECT_EQ(*world_.core->Pause(world_.now(), job), false);
  world_.Settle();
  EXPECT_EQ(world_.State(job), JobState::kPaused);

  world_.Start("rollout-2", Role::kRollout);
  world_.Settle();
  EXPECT_EQ(world_.State(job), JobState::kPaused);
  ASSERT_TRUE(world_.core->Resume(world_.now(), job).ok());
  world_.AllReady(job);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
}

TEST_F(VerbsTest, WhatAWorkerHoldsThatDoesNotLeaveInTimeIsTakenFromIt) {
  const std::string job = world_.Run("digits");
  ASSERT_TRUE(world_.core->Pause(world_.now(), job).ok());
  world_.Settle();
  world_.actors["trainer-0"].progress.clear();
  world_.actors["rollout-0"].progress.clear();
  world_.actors["reward-0"].progress.clear();
  world_.Pass(absl::Seconds(12));  // rollout-1 still reports progress.

  EXPECT_EQ(world_.State(job), JobState::kPaused);
  ASSERT_THAT(world_.releases, SizeIs(1));
  EXPECT_EQ(world_.releases[0].worker, "rollout-1");
}

TEST_F(VerbsTest, APausedJobWhoseQueueHasLostItGoesOnFromItsCheckpoint) {
  const std::string job = world_.Run("digits");
  world_.Step(job, 0);
  world_.queues["queue-0"].ledger.accepted = 8;
  Pause(job);
  EXPECT_EQ(world_.job(job).record.ledger.accepted, 8);

  world_.Kill("queue-0");
  world_.queues["queue-0"].ledger = {};
  world_.Start("queue-0", Role::kQueue);
  world_.Settle();
  EXPECT_EQ(world_.State(job), JobState::kPaused);
  EXPECT_EQ(world_.job(job).record.ledger.accepted, 8) << "the new process has no account of it";
  ASSERT_TRUE(world_.core->Resume(world_.now(), job).ok());
  world_.AllReady(job);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
}

TEST_F(VerbsTest, APausedJobWhoseQueueIsAwayWaitsForThatQueue) {
  const std::string job = world_.Run("digits");
  Pause(job);
  world_.Kill("queue-0");
  world_.Start("queue-1", Role::kQueue);
  world_.Pass(absl::Seconds(12));
  ASSERT_TRUE(world_.core->Resume(world_.now(), job).ok());
  world_.Settle();
  EXPECT_EQ(world_.State(job), JobState::kWaiting);
  EXPECT_THAT(world_.job(job).record.message, HasSubstr("its queue queue-0"));

  world_.Start("queue-0", Role::kQueue);
  world_.AllReady(job);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_EQ(world_.job(job).assign.queue, "queue-0");
}

TEST_F(VerbsTest, APausingAndAPausedJobCanBeCancelled) {
  const std::string pausing = world_.Run("first");
  world_.Step(pausing, 0);
  ASSERT_TRUE(world_.core->Pause(world_.now(), pausing).ok());
  world_.Settle();
  EXPECT_EQ(*world_.core->Cancel(world_.now(), pausing, false), false);
  world_.Settle();
  EXPECT_EQ(AssignmentOf("trainer-0").phase, AssignmentPhase::kStop);
  EXPECT_TRUE(AssignmentOf("trainer-0").checkpoint);
  world_.Leave();
  world_.Leave();
  EXPECT_EQ(world_.State(pausing), JobState::kCancelled);

  const std::string paused = world_.Run("second");
  Pause(paused);
  EXPECT_EQ(*world_.core->Cancel(world_.now(), paused, false), false);
  world_.Settle();
  EXPECT_EQ(world_.State(paused), JobState::kCancelled);
  EXPECT_EQ(world_.history.back().phase, QueuePhase::kFreed);
}

TEST_F(VerbsTest, ARetriedJobGoesOnUnderTheNextIncarnationWithItsStepsAndALaterResult) {
  const std::string job = CancelledJob("digits");
  EXPECT_EQ(*Retry(job, 1), false);
  EXPECT_FALSE(world_.store()->Get(JobKey(job, "result")).ok());
  EXPECT_EQ(*Retry(job, 1), true) << "the answer of the first call was lost";

  world_.actors["trainer-0"].progress[job].step = 2;
  world_.AllReady(job);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 2);
  EXPECT_THAT(world_.job(job).steps, SizeIs(2));
  world_.Step(job, 2);
  world_.Say("trainer-0", job, "done");
  world_.Leave();
  world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kSucceeded);
  EXPECT_EQ(world_.ResultOfJob(job).steps, 3);
}

TEST_F(VerbsTest, ARetryOutlivesTheControllerAndMayUseAnotherQueue) {
  const std::string job = CancelledJob("digits");
  world_.Kill("queue-0");
  world_.Start("queue-1", Role::kQueue);
  world_.Pass(absl::Seconds(12));
  EXPECT_EQ(*Retry(job, 1), false);
  world_.Restart();
  for (auto& [id, actor] : world_.actors) {
    if (actor.stream != 0) ASSERT_TRUE(world_.Reregister(id).ok());
  }
  world_.AllReady(job);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_EQ(world_.job(job).assign.queue, "queue-1");
}

TEST_F(VerbsTest, ARetryCountsItsLimitsAnew) {
  Needs needs = World::DefaultNeeds();
  needs.wall = absl::Seconds(30);
  const std::string job = world_.Submit("digits", needs);
  world_.AllReady(job);
  world_.Pass(absl::Seconds(31));
  world_.Leave();
  world_.Leave();
  ASSERT_EQ(world_.State(job), JobState::kFailed) << "no step was trained";

  EXPECT_EQ(*Retry(job, 1), false);
  world_.AllReady(job);
  world_.Pass(absl::Seconds(20));
  EXPECT_EQ(world_.State(job), JobState::kRunning);
}

TEST_F(VerbsTest, ARetryNeedsItsNameAndTheIncarnationThatTheCallerSaw) {
  const std::string first = CancelledJob("digits");
  EXPECT_EQ(ReasonOf(Retry(first, 7).status()), "NOT_YET");

  const std::string second = CancelledJob("digits");
  EXPECT_EQ(*Retry(first, 1), false) << "the later job of this name has ended";
  EXPECT_EQ((*world_.core->Find("digits"))->record.id, first);
  EXPECT_EQ(ReasonOf(Retry(second, 1).status()), "CONFLICT");
}

TEST_F(VerbsTest, ChangedLimitsAndNumbersOfDaemonsTakeEffectAtOnceAndAreStored) {
  Needs needs = World::DefaultNeeds();
  needs.rollouts = {1, 1};
  const std::string job = world_.Run("digits", needs);
  EXPECT_THAT(world_.job(job).assign.workers, SizeIs(3));
  needs.rollouts = {1, 2};
  needs.wall = absl::Minutes(1);
  EXPECT_EQ(*world_.core->SetSpec(world_.now(), job, "new spec", needs, "more rollouts"), false);
  world_.Settle();
  EXPECT_THAT(world_.job(job).assign.workers, SizeIs(4));
  EXPECT_EQ(world_.Events(job).back().code, "assigned");
  EXPECT_EQ(world_.store()->Get(JobKey(job, "spec"))->value, "new spec");
  EXPECT_EQ(*world_.core->SetSpec(world_.now(), job, "new spec", needs, ""), true);

  world_.Restart();
  for (auto& [id, actor] : world_.actors) ASSERT_TRUE(world_.Reregister(id).ok());
  world_.Settle();
  EXPECT_EQ(world_.job(job).spec, "new spec");
  world_.Step(job, 0);
  world_.Pass(absl::Seconds(70));
  EXPECT_EQ(world_.State(job), JobState::kFinishing) << "limits.wall was lowered";
  EXPECT_EQ(ReasonOf(world_.core->SetSpec(world_.now(), job, "x", needs, "").status()), "NOT_YET");
}

TEST_F(VerbsTest, ADeletedJobIsGoneFromTheStoreAndItsNameIsFree) {
  const std::string job = CancelledJob("digits");
  EXPECT_EQ(Delete("digits"), absl::OkStatus());
  EXPECT_THAT(*world_.store()->List(JobKey(job, "")), IsEmpty());
  EXPECT_FALSE(world_.store()->Get(AssignKey(job)).ok());
  EXPECT_EQ(ReasonOf(world_.core->Find("digits").status()), "JOB");
  EXPECT_EQ(ReasonOf(world_.core->Find(job).status()), "JOB");

  world_.Restart();
  EXPECT_THAT(world_.core->jobs(), IsEmpty());
  for (auto& [id, actor] : world_.actors) ASSERT_TRUE(world_.Reregister(id).ok());
  world_.Run("digits");
}

TEST_F(VerbsTest, TheOrderOfSubmitsIsKeptAlsoAfterADelete) {
  CancelledJob("first");
  const std::string second = CancelledJob("second");
  ASSERT_EQ(Delete("first"), absl::OkStatus());
  const std::string third = world_.Submit("third");
  EXPECT_GT(world_.job(third).record.order, world_.job(second).record.order);
  world_.Restart();
  const std::string fourth = world_.Submit("fourth");
  EXPECT_GT(world_.job(fourth).record.order, world_.job(third).record.order);
}

TEST_F(VerbsTest, AnEndedJobIsNeitherRetriedNorDeletedBeforeItsDataIsFreed) {
  const std::string job = world_.Run("digits");
  ASSERT_TRUE(world_.core->Cancel(world_.now(), job, true).ok());
  world_.Settle();
  world_.queues["queue-0"].answers = false;
  world_.Leave();
  world_.Pass(absl::Seconds(20));
  ASSERT_EQ(world_.State(job), JobState::kCancelled);
  EXPECT_EQ(ReasonOf(Retry(job, 1).status()), "NOT_FREED");
  EXPECT_EQ(ReasonOf(Delete(job)), "NOT_FREED");

  world_.Kill("queue-0");
  world_.Pass(absl::Seconds(12));
  EXPECT_EQ(ReasonOf(Delete(job)), "NOT_YET");
  EXPECT_THAT(DetailOf(Delete(job)).hint, HasSubstr("start queue queue-0 again"));
}

TEST_F(VerbsTest, AVerbThatTheStateContradictsSaysWhatWouldWork) {
  const auto hint = [&](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_EQ(DetailOf(status).catalogue, "SLUICE-CTL-0020");
    return DetailOf(status).hint;
  };
  const std::string job = world_.Run("digits");
  EXPECT_THAT(hint(Delete(job)), HasSubstr("sluice job cancel digits"));
  EXPECT_THAT(hint(Retry(job, 1).status()), HasSubstr("FAILED or CANCELLED"));
  ASSERT_TRUE(world_.core->Pause(world_.now(), job).ok());
  EXPECT_THAT(hint(world_.core->Resume(world_.now(), job).status()),
              HasSubstr("sluice job wait digits --for PAUSED"));
  ASSERT_TRUE(world_.core->Cancel(world_.now(), job, true).ok());
  EXPECT_THAT(hint(world_.core->Pause(world_.now(), job).status()), HasSubstr("job wait digits"));
  world_.Leave();
  world_.Leave();
  ASSERT_EQ(world_.State(job), JobState::kCancelled);
  EXPECT_THAT(hint(world_.core->Resume(world_.now(), job).status()),
              HasSubstr("sluice job retry digits"));
  EXPECT_THAT(hint(world_.core->Pause(world_.now(), job).status()), HasSubstr("not ended"));
}

}  // namespace
}  // namespace sluice::controller
