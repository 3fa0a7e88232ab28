#include <gmock/gmock.h>

#include "tests/services/controller/world.h"

// Several jobs on one fleet.
namespace sluice::controller {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StaffingTest : public testing::Test {
 protected:
  StaffingTest() { world_.StartFleet(3); }

  // Submits a job of a submitter, with a minimum of one rollout.
  std::string SubmitFor(const std::string& owner, const std::string& name) {
    const auto output = world_.core->Submit(
        world_.now(), {.id = absl::StrCat(std::string(30, 'f'), name).substr(0, 32),
                       .name = name,
                       .hash = "aa",
                       .spec = "spec",
                       .needs = World::DefaultNeeds(),
                       .owner = owner,
                       .only_own = true});
    EXPECT_TRUE(output.ok()) << output.status();
    world_.Settle();
    return output->job;
  }

  int CountRollouts(const std::string& job) {
    int count = 0;
    for (const Worker& worker : world_.job(job).assign.workers)
      count += worker.role == Role::kRollout && !worker.leaving;
    return count;
  }

  World world_;
};

TEST_F(StaffingTest, AJobGivesItsSurplusBackWhenAWaitingJobCanStartWithIt) {
  const std::string first = world_.Run("first");
  EXPECT_EQ(CountRollouts(first), 3);
  world_.Start("trainer-1", Role::kTrainer);
  Needs needs = World::DefaultNeeds();
  needs.rollouts = {2, 2};
  const std::string second = world_.Submit("second", needs);
  EXPECT_EQ(world_.State(second), JobState::kWaiting);
  EXPECT_THAT(world_.job(second).record.message, HasSubstr("other jobs are giving back"));
  EXPECT_EQ(world_.job(second).starts_when, "it starts when they have left those jobs");
  EXPECT_EQ(CountRollouts(first), 1);
  EXPECT_EQ(world_.actors["rollout-2"].desired.assignments.at(0).phase, AssignmentPhase::kHold);

  world_.Leave();
  world_.AllReady(second);
  EXPECT_EQ(world_.State(second), JobState::kRunning);
  EXPECT_EQ(CountRollouts(second), 2);
  EXPECT_EQ(world_.State(first), JobState::kRunning);
  EXPECT_THAT(world_.releases, IsEmpty());
}

TEST_F(StaffingTest, ARolloutThatRegistersJoinsARunningJob) {
  const std::string job = world_.Run("digits");
  world_.Start("rollout-3", Role::kRollout);
  world_.AllReady(job);
  EXPECT_EQ(CountRollouts(job), 4);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 1) << "the trainer goes on";
}

TEST_F(StaffingTest, AWaitingJobSaysForWhatSinceWhenAndWhatWouldLetItStart) {
  const std::string first = world_.Run("first");
  const absl::Time submitted = world_.clock.Now();
  const std::string second = world_.Submit("second");
  world_.Pass(absl::Seconds(3));
  const Job& waiting = world_.job(second);
  EXPECT_EQ(waiting.record.message, "waits for 1 of 1 trainer");
  EXPECT_EQ(waiting.record.since, submitted);
  EXPECT_EQ(waiting.starts_when,
            "it starts when they are free, or others have registered; job first has trainer-0");
  const auto chain = FindChain(world_.core->WaitsOf(world_.now(), waiting));
  ASSERT_THAT(chain, SizeIs(1));
  EXPECT_EQ(chain[0].next, waiting.starts_when);

  world_.Start("trainer-1", Role::kTrainer);
  world_.Leave();  // One of the rollouts above the minimum of the first job.
  EXPECT_EQ(world_.State(second), JobState::kStarting);
  EXPECT_EQ(world_.job(second).starts_when, "");
}

TEST_F(StaffingTest, AWaitingJobIsToldNothingOfTheJobsOfAnotherSubmitter) {
  const std::string first = SubmitFor("bob", "plan-of-bob");
  world_.AllReady(first);
  const std::string second = SubmitFor("alice", "second");
  EXPECT_EQ(world_.job(second).starts_when,
            "it starts when they are free, or others have registered; another submitter has "
            "trainer-0");
  for (const Event& event : world_.Events(second)) {
    EXPECT_EQ(event.message.find("plan-of-bob"), std::string::npos) << event.message;
  }
}

TEST_F(StaffingTest, AnEventThatNamesItsJobIsShownInThatJobAlone) {
  world_.Start("trainer-1", Role::kTrainer);
  const std::string first = SubmitFor("alice", "first"), second = SubmitFor("bob", "second");
  world_.AllReady(first);
  world_.AllReady(second);
  Event event;
  event.code = "rows_unscorable";
  event.message = "/data/of/bob.jsonl:7";
  event.seq = 1;
  world_.actors["reward-0"].events.emplace_back(second, event);
  event.code = "about_the_daemon";
  event.seq = 2;
  world_.actors["reward-0"].events.emplace_back("", event);
  world_.Settle();

  const auto told = [&](const std::string& job, const std::string& code) {
    int count = 0;
    for (const Event& event : world_.Events(job)) count += event.code == code;
    return count;
  };
  EXPECT_EQ(told(first, "rows_unscorable"), 0);
  EXPECT_EQ(told(second, "rows_unscorable"), 1);
  EXPECT_EQ(told(first, "about_the_daemon"), 1);
  EXPECT_EQ(told(second, "about_the_daemon"), 1);
  EXPECT_TRUE(world_.actors["reward-0"].events.empty());
}

TEST_F(StaffingTest, ADaemonThatIsNotOfTheJobCannotFailIt) {
  const std::string job = world_.Run("digits");
  world_.Start("trainer-1", Role::kTrainer);
  Progress progress;
  progress.job = job;
  progress.incarnation = world_.job(job).assign.trainer_incarnation;
  progress.phase = "failed";
  progress.cause = "a lie";
  world_.actors["trainer-1"].progress[job] = progress;
  world_.Settle();
  EXPECT_EQ(world_.State(job), JobState::kRunning);

  world_.actors["trainer-0"].progress[job] = progress;  // It is believed of the job's own trainer.
  world_.Settle();
  EXPECT_NE(world_.State(job), JobState::kRunning);
}

TEST_F(StaffingTest, AJobAboveItsOwnersQuotaWaitsAndIsToldByNumber) {
  world_.core->SetQuotas([](const std::string& submitter) {
    return submitter == "alice" ? DaemonQuota{.trainers = 1, .rollouts = 2} : DaemonQuota{};
  });
  for (const char* trainer : {"trainer-1", "trainer-2"}) world_.Start(trainer, Role::kTrainer);
  const std::string first = SubmitFor("alice", "first");
  world_.AllReady(first);
  EXPECT_EQ(CountRollouts(first), 2) << "a third one is free, but above the quota";
  const std::string second = SubmitFor("alice", "second");
  EXPECT_EQ(world_.State(second), JobState::kWaiting);
  EXPECT_EQ(world_.job(second).record.code, "SLUICE-CTL-0024");
  EXPECT_THAT(world_.job(second).record.message,
              HasSubstr("submitter alice, whose jobs need 1 of 1"));
  EXPECT_THAT(world_.job(second).starts_when, HasSubstr("other jobs of this submitter"));
  EXPECT_EQ(world_.State(SubmitFor("bob", "third")), JobState::kStarting);

  ASSERT_TRUE(world_.core->Cancel(world_.now(), first, true).ok());
  world_.Leave();
  world_.Leave();
  world_.AllReady(second);
  EXPECT_EQ(world_.State(second), JobState::kRunning);
  EXPECT_EQ(world_.job(second).record.code, "");
}

TEST_F(StaffingTest, AJobUsesTheDaemonsOfItsPool) {
  Needs needs = World::DefaultNeeds();
  needs.pool = "big";
  const std::string job = world_.Submit("digits", needs);
  EXPECT_EQ(world_.State(job), JobState::kWaiting);
  world_.Start("queue-big", Role::kQueue, "big");
  world_.Start("trainer-big", Role::kTrainer, "big");
  world_.Start("rollout-big", Role::kRollout, "big");
  world_.Start("reward-big", Role::kReward, "big");
  world_.AllReady(job);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
  for (const Worker& worker : world_.job(job).assign.workers)
    EXPECT_THAT(worker.id, testing::EndsWith("-big"));
  world_.Restart();
  EXPECT_EQ(world_.job(job).record.needs.pool, "big");
}

TEST_F(StaffingTest, JobsAreSpreadOverTheQueues) {
  world_.Start("queue-1", Role::kQueue);
  world_.Start("trainer-1", Role::kTrainer);
  const std::string first = world_.Submit("first"), second = world_.Submit("second");
  EXPECT_NE(world_.job(first).assign.queue, world_.job(second).assign.queue);
}

}  // namespace
}  // namespace sluice::controller
