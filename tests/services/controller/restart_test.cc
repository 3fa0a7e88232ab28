// The controller is started anew, from its store alone, in every state of a job.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/services/controller/world.h"

namespace sluice::controller {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RestartTest : public testing::Test {
 protected:
  // The controller restarts, and the daemons register again with the same boot ids.
  void Restart() {
    world_.Restart();
    for (auto& [id, actor] : world_.actors) {
      if (actor.stream == 0) continue;
      const int64_t before = actor.incarnation;
      const auto output = world_.Reregister(id);
      ASSERT_TRUE(output.ok()) << output.status();
      EXPECT_TRUE(output->repeat);
      EXPECT_EQ(output->incarnation, before);
    }
    world_.Settle();
  }

  // Puts these entries into the store, and removes all others.
  void ReplaceStore(const std::vector<meta::Entry>& entries) {
    std::vector<meta::Op> ops;
    const std::vector<meta::Entry> before = world_.store()->List("").value();
    for (const meta::Entry& entry : before) ops.push_back({entry.key, std::nullopt});
    for (const meta::Entry& entry : entries) ops.push_back({entry.key, entry.value});
    ASSERT_TRUE(world_.store()->Txn({}, ops).ok());
  }

  World world_;
};

TEST_F(RestartTest, JobsThatTheStoreHasLostGoOnAndAreKnownAgainOnceItIsRestored) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Step(job, 0);
  const std::vector<meta::Entry> backup = world_.store()->List("").value();
  const DesiredState before = world_.actors["trainer-0"].desired;
  ASSERT_EQ(before.assignments.size(), 1u);

  ReplaceStore({});
  world_.Restart();
  for (const char* id : {"trainer-0", "rollout-0", "reward-0"})
    EXPECT_THAT(world_.Reregister(id)->unknown_jobs, ElementsAre(job)) << id;
  EXPECT_THAT(world_.Reregister("queue-0")->unknown_jobs, IsEmpty());
  const std::string other = world_.Submit("other");
  world_.Pass(absl::Minutes(1));
  EXPECT_EQ(world_.actors["trainer-0"].desired.assignments, before.assignments);
  EXPECT_EQ(world_.actors["trainer-0"].desired.generation, before.generation);
  EXPECT_EQ(world_.State(other), JobState::kWaiting);

  ReplaceStore(backup);
  Restart();
  EXPECT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 1);
  world_.Step(job, 1);
  EXPECT_EQ(world_.job(job).record.groups.back().reported_k, 1);
}

TEST_F(RestartTest, ADaemonIsToldToLeaveJobsThatTheStoreHasLostWhenItIsDrained) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  ReplaceStore({});
  world_.Restart();
  for (const auto& [id, actor] : world_.actors) ASSERT_TRUE(world_.Reregister(id).ok());
  ASSERT_TRUE(world_.core->Drain(world_.now(), "trainer-0", true).ok());
  world_.Settle();
  EXPECT_THAT(world_.actors["trainer-0"].desired.assignments, IsEmpty());
  // That it has unknown jobs is stored, so the next controller leaves the others alone too.
  Restart();
  EXPECT_THAT(world_.actors["trainer-0"].desired.assignments, IsEmpty());
  EXPECT_EQ(world_.actors["rollout-0"].desired.assignments.size(), 1u);
}

TEST_F(RestartTest, AWaitingJobIsStillThere) {
  const std::string job = world_.Submit("digits");
  Restart();
  EXPECT_EQ(world_.State(job), JobState::kWaiting);
  world_.StartFleet();
  world_.AllReady(job);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
}

TEST_F(RestartTest, AStoredRecordWithAByteThatIsNotUtf8IsReadWithThatByteReplaced) {
  const std::string job = world_.Submit("digits");
  for (const std::string& key : {JobKey(job, "status"), EventKey(job, 1)}) {
    std::string text = world_.store()->Get(key).value().value;
    const size_t at = text.find("\"message\":\"") + std::strlen("\"message\":\"");
    text.insert(at, "caf\xe9 ");
    ASSERT_TRUE(world_.store()->Txn({}, {{key, text}}).ok());
  }

  Restart();
  EXPECT_EQ(world_.State(job), JobState::kWaiting);
  EXPECT_EQ(world_.Events(job).at(0).message, "caf\xef\xbf\xbd job digits was submitted");
}

TEST_F(RestartTest, AStartingJobGoesOnStarting) {
  world_.StartFleet();
  const std::string job = world_.Submit("digits");
  Restart();
  EXPECT_EQ(world_.State(job), JobState::kStarting);

  world_.AllReady(job);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 1);
}

TEST_F(RestartTest, ARunningJobIsNotDisturbed) {
  world_.StartFleet(2);
  const std::string job = world_.Run("digits");
  for (int k = 0; k < 3; ++k) world_.Step(job, k, 0.25);
  const DaemonAssignment before = world_.actors["trainer-0"].desired.assignments.at(0);
  const uint64_t revision = world_.job(job).assign.revision;
  const int repeats = world_.repeats;

  Restart();

  EXPECT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_EQ(world_.actors["trainer-0"].desired.assignments.at(0), before);
  EXPECT_EQ(world_.job(job).assign.revision, revision);
  EXPECT_EQ(world_.repeats, repeats + 1);  // SetJob with the stored revision.
  EXPECT_EQ(world_.job(job).record.restarts.at("controller"), 1);
  EXPECT_EQ(world_.job(job).record.restarts.size(), 1u);

  for (int k = 3; k < 6; ++k) world_.Step(job, k, 0.75);
  world_.Say("trainer-0", job, "done");
  world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kSucceeded);
  EXPECT_NEAR(*world_.ResultOfJob(job).reward_first, 0.5, 1e-12);
}

TEST_F(RestartTest, AStallEndsWithAStepAndNotWithTheControllersStart) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Pass(absl::Seconds(61), absl::Seconds(1));
  Restart();
  EXPECT_THAT(world_.job(job).record.conditions, ElementsAre("Stalled"));
  EXPECT_NE(world_.Events(job).back().code, "moving");

  world_.Step(job, 0);
  EXPECT_TRUE(world_.job(job).record.conditions.empty());
  EXPECT_EQ(world_.Events(job).back().code, "moving");
}

TEST_F(RestartTest, StepsAndEventsThatWereNotStoredComeAgainAndNoneTwice) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Step(job, 0);

  StepReport lost;  // Reported to a controller that dies before it stores it.
  lost.k = 1;
  lost.version = {1, 2};
  world_.actors["trainer-0"].steps.emplace_back(job, lost);

  // World::Beat() would store what the heartbeat brings.
  HeartbeatInput input;
  input.daemon = "trainer-0";
  input.incarnation = 1;
  input.stream = 99;
  input.steps = world_.actors["trainer-0"].steps;
  ASSERT_TRUE(world_.core->Heartbeat(world_.now(), input).ok());
  Restart();

  EXPECT_EQ(world_.store()->List(JobKey(job, "steps/"))->size(), 2u);

  const std::vector<Event> events = world_.Events(job);
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].seq, i + 1);
}

TEST_F(RestartTest, WhatTheStepsHaveShownIsKnownAndNotToldAgain) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.step_values = {{"flat_share", 1}};
  for (int k = 0; k < 8; ++k) world_.Step(job, k, 0);
  Restart();
  for (int k = 8; k < 12; ++k) world_.Step(job, k, 0);
  Restart();

  EXPECT_THAT(world_.job(job).record.conditions, ElementsAre("NoSignal"));

  world_.Say("trainer-0", job, "done");
  world_.Leave();
  EXPECT_THAT(world_.ResultOfJob(job).warnings, ElementsAre(HasSubstr("steps 0 to 11")));

  const std::vector<Event> events = world_.Events(job);
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const Event& event) { return event.code == "no_signal"; }),
            1);
}

TEST_F(RestartTest, ADaemonThatDiesMeanwhileIsLostAfterTheGraceAndNotBefore) {
  world_.StartFleet(2);
  const std::string job = world_.Run("digits");
  world_.actors["rollout-1"].stream = 0;
  Restart();
  world_.Pass(absl::Seconds(9));
  EXPECT_NE(world_.job(job).assign.Find("rollout-1"), nullptr);

  world_.Pass(absl::Seconds(2));
  EXPECT_EQ(world_.job(job).assign.Find("rollout-1"), nullptr);
  EXPECT_EQ(world_.releases.size(), 1u);
}

TEST_F(RestartTest, ARecoveringJobDrawsItsNextTrainerGroupOnce) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Kill("trainer-0");
  world_.Pass(absl::Seconds(4));
  ASSERT_EQ(world_.State(job), JobState::kRecovering);
  Restart();
  EXPECT_EQ(world_.State(job), JobState::kRecovering);

  world_.Start("trainer-0", Role::kTrainer);
  world_.AllReady(job);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 2);

  Restart();
  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 2);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
}

TEST_F(RestartTest, ACancelUnderWayGoesOnToItsEnd) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  ASSERT_TRUE(world_.core->Cancel(world_.now(), job, false).ok());
  world_.Settle();
  ASSERT_EQ(world_.State(job), JobState::kCancelling);
  Restart();

  EXPECT_EQ(world_.State(job), JobState::kCancelling);
  EXPECT_TRUE(world_.actors["trainer-0"].desired.assignments.at(0).checkpoint);

  world_.Leave();
  world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kCancelled);
}

TEST_F(RestartTest, AFinishingJobClosesItsBooksAndStaysFinished) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Step(job, 0);
  world_.queues["queue-0"].answers = false;
  world_.Say("trainer-0", job, "done");
  world_.Leave();
  ASSERT_EQ(world_.State(job), JobState::kFinishing);
  Restart();
  world_.queues["queue-0"].answers = true;
  world_.queues["queue-0"].ledger.accepted = 3;
  world_.Pass(absl::Seconds(1));
  world_.Leave();

  EXPECT_EQ(world_.State(job), JobState::kSucceeded);
  EXPECT_EQ(world_.ResultOfJob(job).ledger.accepted, 3);

  Restart();
  EXPECT_EQ(world_.State(job), JobState::kSucceeded);
  EXPECT_EQ(world_.ResultOfJob(job).steps, 1);
  EXPECT_EQ(world_.job(job).record.stage, Stage::kOver);
}

TEST_F(RestartTest, TheWallLimitCountsFromTheFirstRunning) {
  world_.StartFleet();
  Needs needs = World::DefaultNeeds();
  needs.wall = absl::Seconds(30);
  const std::string job = world_.Run("digits", needs);
  world_.Pass(absl::Seconds(20));
  Restart();
  world_.Pass(absl::Seconds(9));

  EXPECT_EQ(world_.State(job), JobState::kRunning);

  world_.Pass(absl::Seconds(1));
  EXPECT_EQ(world_.State(job), JobState::kFinishing);
}

TEST_F(RestartTest, GenerationsRiseAboveThoseOfTheControllerBefore) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  const uint64_t before = world_.actors["trainer-0"].desired.generation;
  Restart();
  EXPECT_GT(world_.actors["trainer-0"].desired.generation, before);
}

TEST_F(RestartTest, ADamagedRecordIsNamed) {
  const std::string job = world_.Submit("digits");
  ASSERT_TRUE(world_.store()->Put(JobKey(job, "status"), "{").ok());
  const absl::Status status = Controller::Load(world_.store(), world_.now()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(JobKey(job, "status")));
}

}  // namespace
}  // namespace sluice::controller
