// The life of a job in the controller, with simulated daemons that do what the test says.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "services/controller/core/why.h"
#include "tests/services/controller/world.h"

namespace sluice::controller {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class LifecycleTest : public testing::Test {
 protected:
  // Ends the job as its trainer does at limits.max_steps.
  void Finish(const std::string& job) {
    world_.Say("trainer-0", job, "done");
    world_.Leave();
  }

  // The trainer's next heartbeat brings this event.
  void TrainerTells(const char* code, const char* message) {
    Event event;
    event.seq = 1;
    event.code = code;
    event.message = message;
    world_.actors["trainer-0"].events.emplace_back("", event);
    world_.Settle();
  }

  // The messages of the events with this code. SeverityTold() gives the severity of the last one.
  std::vector<std::string> Told(const std::string& code) {
    std::vector<std::string> messages;
    for (const Event& event : world_.Events(world_.core->jobs().begin()->first)) {
      if (event.code == code) messages.push_back(event.message);
    }
    return messages;
  }

  Severity SeverityTold(const std::string& code) {
    Severity severity = Severity::kInfo;
    for (const Event& event : world_.Events(world_.core->jobs().begin()->first)) {
      if (event.code == code) severity = event.severity;
    }
    return severity;
  }

  World world_;
};

TEST_F(LifecycleTest, AJobWaitsForDaemonsStartsRunsAndSucceeds) {
  const std::string job = world_.Submit("digits");
  EXPECT_EQ(world_.State(job), JobState::kWaiting);
  EXPECT_THAT(world_.job(job).record.message, HasSubstr("trainer"));

  world_.StartFleet();
  world_.Settle();
  EXPECT_EQ(world_.State(job), JobState::kStarting);

  const World::Actor& trainer = world_.actors["trainer-0"];
  ASSERT_EQ(trainer.desired.assignments.size(), 1u);
  EXPECT_EQ(trainer.desired.assignments[0].incarnation, 1);
  EXPECT_EQ(trainer.desired.assignments[0].world, 1u);
  EXPECT_THAT(trainer.desired.assignments[0].queues, ElementsAre("queue-0:1"));
  EXPECT_THAT(trainer.desired.assignments[0].weights, ElementsAre("trainer-0:1", "rollout-0:1"));
  EXPECT_THAT(trainer.desired.assignments[0].rewards, IsEmpty());
  EXPECT_THAT(world_.actors["rollout-0"].desired.assignments[0].rewards, ElementsAre("reward-0:1"))
      << "rollouts have answers of evaluations scored there";

  world_.AllReady(job);
  EXPECT_EQ(world_.State(job), JobState::kRunning);

  world_.clock.Advance(absl::Seconds(10));
  for (int k = 0; k < 12; ++k) world_.Step(job, k, k / 20.0);
  world_.queues["queue-0"].ledger = {
      .accepted = 96, .durable = 90, .dropped = {{"closed", 6}}, .tokens_generated = 700};
  Finish(job);

  EXPECT_EQ(world_.State(job), JobState::kSucceeded);

  const Result result = world_.ResultOfJob(job);
  EXPECT_EQ(result.state, "SUCCEEDED");
  EXPECT_EQ(result.steps, 12);
  EXPECT_NEAR(result.seconds, 10, 1e-6);
  EXPECT_NEAR(*result.reward_first, 4.5 / 20, 1e-12);  // Steps 0 to 9.
  EXPECT_NEAR(*result.reward_last, 6.5 / 20, 1e-12);   // Steps 2 to 11.
  EXPECT_THAT(result.staleness_histogram, ElementsAre(Pair("0", 120), Pair("1", 6)));
  EXPECT_EQ(result.staleness_max, 1);
  EXPECT_EQ(result.ledger.durable, 90);
  EXPECT_EQ(result.tokens_generated, 700);
  EXPECT_EQ(world_.job(job).record.stage, Stage::kOver);
}

TEST_F(LifecycleTest, TheQueueHearsOpenThenHoldThenClosedThenFreed) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  Finish(job);
  std::vector<QueuePhase> phases;
  for (const SetJobCall& call : world_.history) {
    if (phases.empty() || phases.back() != call.phase) phases.push_back(call.phase);
  }

  EXPECT_THAT(phases, ElementsAre(QueuePhase::kOpen, QueuePhase::kHold, QueuePhase::kClosed,
                                  QueuePhase::kFreed));
  EXPECT_TRUE(std::is_sorted(world_.history.begin(), world_.history.end(),
                             [](const auto& a, const auto& b) { return a.revision < b.revision; }));
}

TEST_F(LifecycleTest, DaemonsHearOfAJobOnlyAfterItsQueue) {
  world_.StartFleet();
  world_.queues["queue-0"].answers = false;
  const std::string job = world_.Submit("digits");
  EXPECT_TRUE(world_.actors["trainer-0"].desired.assignments.empty());

  world_.queues["queue-0"].answers = true;
  world_.Pass(absl::Seconds(1));
  EXPECT_EQ(world_.actors["trainer-0"].desired.assignments.size(), 1u);
}

TEST_F(LifecycleTest, RewardsAreWeighedByHowManyWereScored) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Step(job, 0, 1.0, 1);
  world_.Step(job, 1, 0.0, 3);
  Finish(job);
  EXPECT_NEAR(*world_.ResultOfJob(job).reward_first, 0.25, 1e-12);
}

TEST_F(LifecycleTest, ASupervisedJobHasNoRewardAndItsTrainersTokens) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Step(job, 0, 0, 0);
  world_.Step(job, 1, 0, 0);
  world_.queues["queue-0"].ledger = {.accepted = 64, .durable = 64};
  Finish(job);

  const Result result = world_.ResultOfJob(job);
  EXPECT_THAT(result.restarts,
              ElementsAre(Pair("controller", 0), Pair("queue", 0), Pair("reward", 0),
                          Pair("rollout", 0), Pair("trainer", 0)));
  EXPECT_EQ(result.reward_first, std::nullopt);
  EXPECT_EQ(result.reward_last, std::nullopt);
  EXPECT_EQ(result.tokens_trained, 20);
}

TEST_F(LifecycleTest, AJobThatLearnsNothingIsWarnedOfWhileItRunsAndInItsResult) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.step_values = {
      {"flat_share", 1}, {"lr", 1e-3}, {"grad_norm", 0.1}, {"reward_min", 0}, {"reward_max", 0}};
  for (int k = 0; k < 9; ++k) world_.Step(job, k, 0);

  EXPECT_THAT(world_.job(job).record.conditions, ElementsAre());
  EXPECT_THAT(Told("no_signal"), ElementsAre());

  for (int k = 9; k < 30; ++k) world_.Step(job, k, 0);
  EXPECT_THAT(world_.job(job).record.conditions, ElementsAre("NoSignal"));
  EXPECT_THAT(Told("no_signal"), ElementsAre(HasSubstr("steps 0 to 9")));
  EXPECT_EQ(SeverityTold("no_signal"), Severity::kWarning);

  Finish(job);
  EXPECT_EQ(world_.State(job), JobState::kSucceeded);
  EXPECT_THAT(world_.ResultOfJob(job).warnings, ElementsAre(HasSubstr("steps 0 to 29")));
}

// A learning rate that was far too high leads to this: answers still differ, and nothing moves the
// policy.
TEST_F(LifecycleTest, AGradientOfZeroWhereRewardsDifferIsAnAlarm) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.step_values = {{"flat_share", 0.5}, {"lr", 1e3}, {"grad_norm", 0}};
  for (int k = 0; k < 10; ++k) world_.Step(job, k, 0.05);
  EXPECT_THAT(Told("no_signal"), ElementsAre(HasSubstr("lower trainer.optimizer.lr")));
  EXPECT_EQ(SeverityTold("no_signal"), Severity::kAlarm);
}

TEST_F(LifecycleTest, ACollapseIsAnAlarmAndAConditionUntilItIsOver) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.step_values = {
      {"flat_share", 0.5}, {"lr", 1e-3}, {"grad_norm", 0.1}, {"reward_min", 0}, {"reward_max", 1}};
  int k = 0;
  for (; k < 30; ++k) world_.Step(job, k, 0.5);
  for (; k < 45; ++k) world_.Step(job, k, 0.05);

  EXPECT_THAT(world_.job(job).record.conditions, ElementsAre("RewardCollapsed"));
  EXPECT_THAT(Told("reward_collapsed"), ElementsAre(HasSubstr("was 0.500 at best")));
  EXPECT_EQ(SeverityTold("reward_collapsed"), Severity::kAlarm);

  for (; k < 60; ++k) world_.Step(job, k, 0.5);
  EXPECT_THAT(world_.job(job).record.conditions, ElementsAre());
  EXPECT_EQ(Told("reward_collapsed").size(), 1u);
}

TEST_F(LifecycleTest, ASpellThatANewTrainerGroupMeetsAgainIsNotToldAgain) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.step_values = {{"flat_share", 1}};
  for (int k = 0; k < 15; ++k) world_.Step(job, k, 0);
  EXPECT_EQ(Told("no_signal").size(), 1u);

  world_.Say("trainer-0", job, "restore", "the queue has lost the job");
  // The next trainer group starts from a checkpoint at step 4: steps 0 to 3 are those of the first
  // trainer group.
  world_.actors["trainer-0"].progress[job].step = 4;
  world_.AllReady(job);
  ASSERT_EQ(world_.State(job), JobState::kRunning);
  for (int k = 4; k < 12; ++k) world_.Step(job, k, 0);

  EXPECT_THAT(world_.job(job).record.conditions, ElementsAre("NoSignal"));
  EXPECT_EQ(Told("no_signal").size(), 1u);

  world_.step_values = {{"flat_share", 0}};
  world_.Step(job, 12, 0.1);
  world_.step_values = {{"flat_share", 1}};
  for (int k = 13; k < 23; ++k) world_.Step(job, k, 0);
  EXPECT_THAT(Told("no_signal"),
              ElementsAre(HasSubstr("steps 0 to 9"), HasSubstr("steps 13 to 22")));
}

TEST_F(LifecycleTest, SubmitIsIdempotentByNameAndHash) {
  const std::string job = world_.Submit("digits");
  const auto again = world_.core->Submit(world_.now(), {"ff", "digits", "aa", "spec", {}});
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->repeat);
  EXPECT_EQ(again->job, job);

  const absl::Status other =
      world_.core->Submit(world_.now(), {"ff", "digits", "bb", "spec", {}}).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(DetailOf(other).current, job);
  EXPECT_EQ(world_.core->jobs().size(), 1u);
}

TEST_F(LifecycleTest, AJobThatHasEndedGivesUpItsNameAndIsStillFoundByItsId) {
  world_.StartFleet();
  const std::string first = world_.Run("digits");
  world_.Say("rollout-0", first, "failed", "no config.json");

  EXPECT_EQ(
      ReasonOf(world_.core->Submit(world_.now(), {"ff", "digits", "bb", "spec", {}}).status()),
      "CONFLICT")
      << "the job is about to end, and has not ended yet";

  world_.Leave();
  ASSERT_EQ(world_.State(first), JobState::kFailed);

  for (const char* hash : {"bb", "aa"}) {  // A changed file, and then the same one again.
    const std::string before = (*world_.core->Find("digits"))->record.id;
    const auto again = world_.core->Submit(
        world_.now(), {absl::StrCat(hash, "0"), "digits", hash, "spec", World::DefaultNeeds()});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_FALSE(again->repeat);
    EXPECT_EQ(again->previous, before);
    EXPECT_EQ((*world_.core->Find("digits"))->record.id, again->job);
    ASSERT_TRUE(world_.core->Cancel(world_.now(), "digits", true).ok());
    world_.Settle();
    world_.Leave();
    ASSERT_EQ(world_.State(again->job), JobState::kCancelled);
  }

  EXPECT_EQ((*world_.core->Find(first))->record.state, JobState::kFailed);
  EXPECT_EQ(world_.core->jobs().size(), 3u);

  world_.Restart();
  EXPECT_EQ((*world_.core->Find("digits"))->record.id, "aa0");
  EXPECT_EQ((*world_.core->Find(first))->record.state, JobState::kFailed);
  EXPECT_EQ(world_.core->jobs().size(), 3u);
}

TEST_F(LifecycleTest, ATryWhoseAnswerWasLostMakesNoSecondJobThoughTheFirstHasEnded) {
  const auto first = world_.core->Submit(
      world_.now(), {"f1", "digits", "aa", "spec", World::DefaultNeeds(), "call"});
  ASSERT_TRUE(first.ok());
  world_.Settle();
  ASSERT_TRUE(world_.core->Cancel(world_.now(), "digits", true).ok());
  world_.Settle();
  ASSERT_EQ(world_.State("f1"), JobState::kCancelled);
  world_.Restart();

  const auto again = world_.core->Submit(
      world_.now(), {"f2", "digits", "aa", "spec", World::DefaultNeeds(), "call"});
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->repeat);
  EXPECT_EQ(again->job, "f1");
  EXPECT_FALSE(
      world_.core
          ->Submit(world_.now(), {"f3", "digits", "aa", "spec", World::DefaultNeeds(), "next"})
          ->repeat);
}

TEST_F(LifecycleTest, AJobThatTrainedNoStepFailsWhateverItsTrainerWasDoneWith) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Say("trainer-0", job, "done", "all 1 epochs are trained; there is no batch 0");
  EXPECT_EQ(world_.State(job), JobState::kFinishing);
  EXPECT_EQ(world_.job(job).record.code, "SLUICE-CTL-0018")
      << "a failure shows its code from the first stage on";

  world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kFailed);
  EXPECT_EQ(world_.ResultOfJob(job).state, "FAILED");
  EXPECT_THAT(world_.job(job).record.message,
              HasSubstr("no step was trained: all 1 epochs are trained; there is no batch 0"));
}

TEST_F(LifecycleTest, TheEndOfLimitsWallBeforeTheFirstStepIsAFailure) {
  world_.StartFleet();
  Needs needs = World::DefaultNeeds();
  needs.wall = absl::Seconds(30);
  const std::string job = world_.Run("digits", needs);
  world_.Pass(absl::Seconds(30));
  world_.Leave();
  world_.Leave();

  EXPECT_EQ(world_.State(job), JobState::kFailed);
  EXPECT_EQ(world_.job(job).record.code, "SLUICE-CTL-0018");
  EXPECT_THAT(world_.job(job).record.message, HasSubstr("ended by limits.wall 30s"));
  EXPECT_EQ(world_.ResultOfJob(job).state, "FAILED");
}

TEST_F(LifecycleTest, TheStepUnderWayAtLimitsWallMakesItASuccessAndTheTimeItTookIsTold) {
  world_.StartFleet();
  Needs needs = World::DefaultNeeds();
  needs.wall = absl::Seconds(30);
  const std::string job = world_.Run("digits", needs);
  world_.Pass(absl::Seconds(30));
  ASSERT_EQ(world_.State(job), JobState::kFinishing);
  world_.Pass(absl::Seconds(8));
  world_.Step(job, 0);
  world_.Leave();
  world_.Leave();

  EXPECT_EQ(world_.State(job), JobState::kSucceeded);
  EXPECT_EQ(world_.job(job).record.message,
            "ended by limits.wall 30s; the end took 8s: 8s for the step under way and the last "
            "checkpoint, 0 until all daemons had left, "
            "0 for the queue to complete the ledger");
}

TEST_F(LifecycleTest, RolloutsHaveTimeToLeaveHoweverLongTheLastCheckpointTook) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Step(job, 0);
  ASSERT_TRUE(world_.core->Cancel(world_.now(), job, false).ok());
  world_.Pass(absl::Seconds(20));
  world_.actors["trainer-0"].progress.clear();
  world_.Settle();
  EXPECT_EQ(world_.job(job).record.stage, Stage::kStopAll);

  world_.Pass(absl::Seconds(9));
  EXPECT_EQ(world_.job(job).record.stage, Stage::kStopAll);
  world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kCancelled);
  EXPECT_THAT(Told("ended"), ElementsAre(HasSubstr("9s until all daemons had left")));
}

TEST_F(LifecycleTest, AQueueThatHasSeenALaterListIsGivenTheNextRevision) {
  world_.StartFleet();
  world_.queues["queue-0"].answers = false;
  const std::string job = world_.Submit("digits");
  world_.core->OnSetJobAnswer(
      world_.now(), world_.history.back(),
      ErrorWith(absl::StatusCode::kAborted, {.reason = "LOST_RACE", .current = "41"},
                "revision 1 is below the stored 41"));
  world_.queues["queue-0"].answers = true;
  world_.Pass(absl::Seconds(1));

  EXPECT_EQ(world_.history.back().revision, 42u);
  EXPECT_TRUE(world_.job(job).assign.opened);
}

TEST_F(LifecycleTest, ALostRolloutIsReleasedReplacedAndTheJobRunsOnDegraded) {
  world_.StartFleet(1);
  const std::string job = world_.Run("digits");
  world_.Kill("rollout-0");
  world_.Pass(absl::Seconds(4));

  EXPECT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_THAT(world_.job(job).record.conditions, ElementsAre("Degraded"));
  ASSERT_EQ(world_.releases.size(), 1u);
  EXPECT_EQ(world_.releases[0].worker, "rollout-0");
  EXPECT_EQ(world_.releases[0].incarnation, 1);
  EXPECT_EQ(world_.job(job).assign.Find("rollout-0"), nullptr);

  world_.Start("rollout-0", Role::kRollout);
  world_.AllReady(job);
  ASSERT_NE(world_.job(job).assign.Find("rollout-0"), nullptr);
  EXPECT_EQ(world_.job(job).assign.Find("rollout-0")->incarnation, 2);
  EXPECT_TRUE(world_.job(job).record.conditions.empty());
  EXPECT_EQ(world_.job(job).record.restarts.at("rollout"), 1);

  int told = 0;
  for (const Event& event : world_.Events(job))
    told += event.severity == Severity::kWarning && event.daemon == "rollout-0" ? 1 : 0;
  EXPECT_EQ(told, 1);
  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 1);
}

TEST_F(LifecycleTest, ARewardThatRestartsAtOnceIsListedUnderItsNewIncarnation) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Kill("reward-0");
  world_.Start("reward-0", Role::kReward);
  world_.AllReady(job);

  EXPECT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_EQ(world_.job(job).record.restarts.at("reward"), 1);

  const SetJobCall& last = world_.history.back();
  const auto reward = std::find_if(last.workers.begin(), last.workers.end(),
                                   [](const Worker& w) { return w.id == "reward-0"; });
  ASSERT_NE(reward, last.workers.end());
  EXPECT_EQ(reward->incarnation, 2);
}

TEST_F(LifecycleTest, ALostTrainerMakesANewTrainerGroupAndTheJobRecovers) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  for (int k = 0; k < 5; ++k) world_.Step(job, k);
  world_.Kill("trainer-0");
  world_.Pass(absl::Seconds(4));
  EXPECT_EQ(world_.State(job), JobState::kRecovering);

  world_.Start("trainer-0", Role::kTrainer);
  world_.Settle();
  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 2);

  const SetJobCall& listed = world_.history.back();
  const auto trainer = std::find_if(listed.workers.begin(), listed.workers.end(),
                                    [](const Worker& w) { return w.role == Role::kTrainer; });
  ASSERT_NE(trainer, listed.workers.end());
  EXPECT_EQ(trainer->incarnation, 2);  // Its calls have the incarnation of the trainer group.

  world_.actors["trainer-0"].progress[job].step = 3;  // It loads a checkpoint at step 3.
  world_.AllReady(job);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_EQ(world_.job(job).record.restarts.at("trainer"), 1);

  // It goes on from there: steps 3 and 4 come again, and count once.
  for (int k = 3; k < 6; ++k) world_.Step(job, k, 0.9);
  Finish(job);
  const Result result = world_.ResultOfJob(job);
  EXPECT_EQ(result.steps, 6);
  EXPECT_EQ(result.staleness_histogram.at("0"), 60);
}

TEST_F(LifecycleTest, ATrainerThatAsksToRestoreGetsANewIncarnationOnce) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Say("trainer-0", job, "restore", "the queue lost the batch");
  world_.Settle();

  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 2);
  EXPECT_EQ(world_.actors["trainer-0"].desired.assignments[0].incarnation, 2);
  EXPECT_EQ(world_.job(job).record.restarts.at("trainer"), 1);
}

TEST_F(LifecycleTest, StepsOfAnOldTrainerGroupAreNotStored) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Say("trainer-0", job, "restore");
  StepReport stale;
  stale.k = 0;
  stale.version = {1, 1};
  world_.actors["trainer-0"].steps.emplace_back(job, stale);
  world_.Settle();

  EXPECT_EQ(world_.job(job).record.step, 0);
}

// The steps of the job whose reports are stored.
std::vector<int64_t> StoredSteps(World& world, const std::string& job) {
  std::vector<int64_t> steps;
  const std::vector<meta::Entry> entries = world.store()->List(JobKey(job, "steps/")).value();
  for (const meta::Entry& entry : entries)
    steps.push_back(Decode<StepReport>(entry.key, entry.value)->k);
  return steps;
}

TEST_F(LifecycleTest, StepsAfterTheCheckpointAreGoneAsSoonAsTheNextTrainerGroupIsReady) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  for (int k = 0; k < 5; ++k) world_.Step(job, k);
  world_.Kill("trainer-0");
  world_.Start("trainer-0", Role::kTrainer);
  world_.actors["trainer-0"].progress[job].step = 3;  // It loads a checkpoint at step 3.
  world_.AllReady(job);
  ASSERT_EQ(world_.job(job).assign.trainer_incarnation, 2);

  EXPECT_THAT(StoredSteps(world_, job), testing::ElementsAre(0, 1, 2));
  Finish(job);
  EXPECT_EQ(world_.ResultOfJob(job).staleness_histogram.at("0"), 30);
}

TEST_F(LifecycleTest, TheResultShowsACollapseThatFirstAndLastRewardHide) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  for (int k = 0; k < 600; ++k) {
    world_.AddReport(job, k,
                     {{"reward_mean", k >= 300 && k < 320 ? 0.9 : 0.1}, {"reward_count", 8}});
  }
  world_.Settle();
  Finish(job);

  const Result result = world_.ResultOfJob(job);
  EXPECT_NEAR(*result.reward_first, 0.1, 1e-12);
  EXPECT_NEAR(*result.reward_last, 0.1, 1e-12);

  ASSERT_EQ(result.curve.size(), 60u);
  EXPECT_EQ(result.curve.front().first_step, 0);
  EXPECT_EQ(result.curve.back().last_step, 599);
  for (size_t i = 1; i < result.curve.size(); ++i) {
    EXPECT_EQ(result.curve[i].first_step, result.curve[i - 1].last_step + 1);
  }
  ASSERT_TRUE(result.best.has_value() && result.worst.has_value());
  EXPECT_EQ(result.best->first_step, 300);
  EXPECT_EQ(result.best->last_step, 309);
  EXPECT_NEAR(*result.best->reward, 0.9, 1e-12);
  EXPECT_NEAR(*result.worst->reward, 0.1, 1e-12);
}

TEST_F(LifecycleTest, TheCurveOfASupervisedJobIsItsLoss) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  for (int k = 0; k < 3; ++k) world_.AddReport(job, k, {{"loss", 3.0 - k}, {"tokens", 10}});
  world_.Settle();
  Finish(job);

  const Result result = world_.ResultOfJob(job);
  ASSERT_EQ(result.curve.size(), 3u);
  EXPECT_FALSE(result.curve[0].reward.has_value());
  EXPECT_EQ(result.curve[0].loss, 3.0);
  EXPECT_EQ(result.best->first_step, 2);
  EXPECT_EQ(result.worst->first_step, 0);
}

TEST_F(LifecycleTest, OfALongRunTheNewestStepsStayAndTheOlderOnesAreThinnedOut) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  constexpr int64_t kSteps = 20'000;
  for (int64_t k = 0; k < kSteps; ++k) {
    world_.AddReport(
        job, k, {{"reward_mean", k < kSteps / 2 ? 0.2 : 0.6}, {"reward_count", 8}, {"tokens", 10}});
    if (k % 100 == 99) world_.Settle();
  }

  const std::vector<int64_t> steps = StoredSteps(world_, job);
  // Whenever there are 4096 reports, the first 10 and the newest 2048 stay, and of those between
  // only each n-th. n doubles as the run grows, and is 32 in the end.
  EXPECT_LE(steps.size(), 4096u);
  EXPECT_EQ(steps.back(), kSteps - 1);
  for (int64_t k = 0; k < 10; ++k) EXPECT_EQ(steps[static_cast<size_t>(k)], k);
  EXPECT_EQ(steps[steps.size() - 2048], kSteps - 2048);
  for (size_t i = 10; i < steps.size(); ++i) EXPECT_LE(steps[i] - steps[i - 1], 32);

  world_.Restart();  // The sums are computed anew from the store.
  for (auto& [id, actor] : world_.actors) ASSERT_TRUE(world_.Reregister(id).ok());
  world_.Settle();
  Finish(job);

  const Result result = world_.ResultOfJob(job);
  EXPECT_EQ(result.staleness_histogram.at("0"), 10 * kSteps);
  EXPECT_EQ(result.staleness_histogram.at("1"), kSteps / 2);
  EXPECT_EQ(result.tokens_trained, 10 * kSteps);  // The queue of this test reports no tokens.
  EXPECT_NEAR(*result.reward_first, 0.2, 1e-12);
  ASSERT_EQ(result.curve.size(), 60u);
  EXPECT_NEAR(*result.curve[29].reward, 0.2, 1e-12);
  EXPECT_NEAR(*result.curve[30].reward, 0.6, 1e-12);
}

TEST_F(LifecycleTest, TooManyRestartsFailTheJobWithCodeAndCause) {
  world_.StartFleet();
  Needs needs = World::DefaultNeeds();
  needs.restarts_per_hour = 2;
  const std::string job = world_.Run("digits", needs);
  for (int i = 0; i < 3; ++i) {
    world_.Kill("trainer-0");
    world_.Start("trainer-0", Role::kTrainer);
    if (i < 2) world_.AllReady(job);
  }

  world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kFailed);
  EXPECT_EQ(world_.job(job).record.code, "SLUICE-CTL-0017");
  EXPECT_EQ(world_.ResultOfJob(job).state, "FAILED");
}

// The queue comes back without the job, which the trainers must restore.
TEST_F(LifecycleTest, AQueueThatHasLostTheJobSendsTheTrainersBackAsANewTrainerGroup) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.queues["queue-0"].ledger.accepted = 7;
  // The queue gets a new list of workers, and answers with its ledger.
  world_.Start("rollout-1", Role::kRollout);
  world_.Settle();
  ASSERT_EQ(world_.job(job).record.ledger.accepted, 7);

  world_.Kill("queue-0");
  world_.Start("queue-0", Role::kQueue);
  world_.queues["queue-0"].ledger = {};
  world_.Settle();

  EXPECT_EQ(world_.State(job), JobState::kRecovering);
  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 2);
  EXPECT_EQ(world_.actors["trainer-0"].desired.assignments.at(0).incarnation, 2);

  // The ledger of a queue that lost the job does not count.
  EXPECT_EQ(world_.job(job).record.ledger.accepted, 7);

  // The old trainer group asks for it too, which is no reason for a third trainer group.
  world_.Say("trainer-0", job, "restore", "RESTORE_FIRST");
  world_.AllReady(job);

  EXPECT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 2);
  EXPECT_EQ(world_.job(job).record.restarts.at("queue"), 1);
  EXPECT_EQ(world_.job(job).record.restarts.count("trainer"), 0u);
}

// The queue comes back with the job, which its log had.
TEST_F(LifecycleTest, AQueueThatGoesOnFromItsLogKeepsTheTrainerGroup) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Kill("queue-0");
  World::QueueState log = world_.queues["queue-0"];
  world_.queues["queue-0"].answers = false;
  world_.Start("queue-0", Role::kQueue);
  world_.Settle();

  EXPECT_EQ(world_.State(job), JobState::kRecovering);  // The queue is there and reads its log.
  EXPECT_EQ(world_.job(job).record.code, "SLUICE-CTL-0011");

  world_.queues["queue-0"] = log;
  world_.Pass(absl::Seconds(1));
  EXPECT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 1);
  EXPECT_EQ(world_.history.back().revision, world_.job(job).assign.revision);
  EXPECT_EQ(world_.job(job).record.restarts.at("queue"), 1);
}

TEST_F(LifecycleTest, AQueueThatStaysAwayFailsTheJobOnlyAfterLimitsStallFail) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Kill("queue-0");
  world_.Pass(absl::Minutes(29), absl::Seconds(2));  // limits.stall_fail is 30 minutes.
  EXPECT_EQ(world_.State(job), JobState::kRecovering);

  world_.Pass(absl::Minutes(2), absl::Seconds(2));
  EXPECT_EQ(world_.job(job).record.code, "SLUICE-CTL-0014");
  EXPECT_THAT(world_.job(job).record.message, HasSubstr("queue queue-0 is lost"));

  world_.Leave();
  world_.Pass(absl::Seconds(16));  // The queue may still come and report the final ledger.
  EXPECT_EQ(world_.State(job), JobState::kFailed);
  EXPECT_EQ(world_.job(job).record.stage, Stage::kFreeing);

  world_.Start("queue-0", Role::kQueue);  // However late it comes, it frees the job.
  world_.Settle();
  EXPECT_EQ(world_.history.back().phase, QueuePhase::kFreed);
  EXPECT_EQ(world_.job(job).record.stage, Stage::kOver);
}

TEST_F(LifecycleTest, AQueueThatDiesAgainAndAgainFailsTheJob) {
  world_.StartFleet();
  Needs needs = World::DefaultNeeds();
  needs.restarts_per_hour = 2;
  const std::string job = world_.Run("digits", needs);
  for (int i = 0; i < 3; ++i) {
    world_.Kill("queue-0");
    world_.Start("queue-0", Role::kQueue);
    if (i < 2) world_.AllReady(job);
  }

  EXPECT_EQ(world_.job(job).record.code, "SLUICE-CTL-0017");
}

TEST_F(LifecycleTest, AnEndingJobsTrainerThatCannotReachItsLastCheckpointHoldsNothingUp) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  ASSERT_TRUE(world_.core->Cancel(world_.now(), job, false).ok());
  world_.Settle();
  world_.Say("trainer-0", job, "restore", "RESTORE_FIRST");
  world_.actors["rollout-0"].progress.clear();
  world_.actors["reward-0"].progress.clear();
  world_.Settle();

  EXPECT_EQ(world_.State(job), JobState::kCancelled);
}

TEST_F(LifecycleTest, TheLateAnswerOfADeadQueueDoesNotHideThatItsSuccessorForgot) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Start("rollout-1", Role::kRollout);  // So the queue must get a new list of workers.
  world_.Beat("rollout-1").IgnoreError();
  ASSERT_EQ(world_.calls.size(), 1u);
  const SetJobCall late = world_.calls.front();
  world_.calls.clear();

  world_.Kill("queue-0");
  world_.Start("queue-0", Role::kQueue);
  // The old process had taken the list, but its answer comes only now.
  world_.core->OnSetJobAnswer(world_.now(), late, SetJobAnswer{true, {}});
  world_.AllReady(job);

  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 2);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
}

TEST_F(LifecycleTest, AQueueThatComesBackWithItsStateOnlyPausesTheJob) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.actors["queue-0"].silent = true;
  world_.Pass(absl::Seconds(11));
  EXPECT_EQ(world_.State(job), JobState::kRecovering);

  world_.actors["queue-0"].silent = false;
  world_.Pass(absl::Seconds(1));
  EXPECT_EQ(world_.State(job), JobState::kRunning);
}

TEST_F(LifecycleTest, TheEndOfLimitsWallIsASuccessWithACheckpoint) {
  world_.StartFleet();
  Needs needs = World::DefaultNeeds();
  needs.wall = absl::Seconds(30);
  const std::string job = world_.Run("digits", needs);
  world_.Step(job, 0);
  world_.Pass(absl::Seconds(30));
  EXPECT_EQ(world_.State(job), JobState::kFinishing);

  const DaemonAssignment& assignment = world_.actors["trainer-0"].desired.assignments.at(0);
  EXPECT_EQ(assignment.phase, AssignmentPhase::kStop);
  EXPECT_TRUE(assignment.checkpoint);
  // Rollouts go on until the trainer has left.
  EXPECT_EQ(world_.actors["rollout-0"].desired.assignments.at(0).phase, AssignmentPhase::kRun);

  world_.Leave();
  world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kSucceeded);
}

TEST_F(LifecycleTest, CancelStopsTheTrainerWithACheckpointAndIsIdempotent) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  EXPECT_FALSE(*world_.core->Cancel(world_.now(), "digits", false));
  EXPECT_TRUE(*world_.core->Cancel(world_.now(), "digits", false));

  world_.Settle();
  EXPECT_EQ(world_.State(job), JobState::kCancelling);
  EXPECT_TRUE(world_.actors["trainer-0"].desired.assignments.at(0).checkpoint);

  world_.Leave();
  world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kCancelled);
  EXPECT_TRUE(*world_.core->Cancel(world_.now(), "digits", false));
}

TEST_F(LifecycleTest, AHardCancelStopsAllAtOnce) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  ASSERT_TRUE(world_.core->Cancel(world_.now(), job, true).ok());
  world_.Settle();
  EXPECT_FALSE(world_.actors["trainer-0"].desired.assignments.at(0).checkpoint);
  EXPECT_EQ(world_.actors["rollout-0"].desired.assignments.at(0).phase, AssignmentPhase::kStop);

  world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kCancelled);
}

TEST_F(LifecycleTest, AWaitingJobIsCancelledAtOnceAndAnEndedOneNotAtAll) {
  const std::string job = world_.Submit("digits");
  ASSERT_TRUE(world_.core->Cancel(world_.now(), job, false).ok());
  world_.Settle();
  EXPECT_EQ(world_.State(job), JobState::kCancelled);

  world_.StartFleet();
  const std::string second = world_.Run("other");
  Finish(second);
  EXPECT_EQ(ReasonOf(world_.core->Cancel(world_.now(), second, false).status()), "NOT_YET");
  EXPECT_EQ(ReasonOf(world_.core->Cancel(world_.now(), "nobody", false).status()), "JOB");
}

TEST_F(LifecycleTest, AJobThatDoesNotStartInTimeFailsAndNamesWhoIsNotReady) {
  world_.StartFleet();
  const std::string job = world_.Submit("digits");
  world_.Pass(absl::Seconds(241), absl::Seconds(1));  // limits.start is 240 s.
  world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kFailed);
  EXPECT_THAT(world_.job(job).record.message, HasSubstr("0 of 1 trainer ready"));
}

TEST_F(LifecycleTest, AJobThatDoesNotStartInTimeTellsWhatTheDaemonSaysThatIsNotReady) {
  world_.StartFleet();
  const std::string job = world_.Submit("digits");
  world_.AllReady(job, /*but=*/"reward-0");
  world_.Say("reward-0", job, "its plug-in server cannot be reached");
  world_.Pass(absl::Seconds(241), absl::Seconds(1));  // limits.start is 240 s.
  world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kFailed);
  EXPECT_THAT(world_.job(job).record.message,
              HasSubstr("0 of 1 reward ready (reward-0: its plug-in server cannot be reached)"));
}

TEST_F(LifecycleTest, AJobWithoutStepsIsStalledThenFails) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Pass(absl::Seconds(61), absl::Seconds(1));

  EXPECT_THAT(world_.job(job).record.conditions, ElementsAre("Stalled"));
  EXPECT_EQ(world_.diagnoses, 1);
  EXPECT_EQ(world_.Events(job).back().code, "stalled");
  EXPECT_THAT(world_.Events(job).back().message, HasSubstr("batch 0 has 1 of 2 groups"));

  world_.Step(job, 0);
  EXPECT_TRUE(world_.job(job).record.conditions.empty());

  world_.diagnosis = "no rollout works for the job";
  world_.Pass(absl::Minutes(31), absl::Seconds(2));
  world_.Leave();

  EXPECT_EQ(world_.State(job), JobState::kFailed);
  EXPECT_EQ(world_.job(job).record.code, "SLUICE-CTL-0015");
  EXPECT_THAT(world_.job(job).record.message, HasSubstr("no rollout works for the job"));
  EXPECT_EQ(world_.diagnoses, 1 + 29) << "once a minute (limits.stall_warn) while it is stalled";
}

TEST_F(LifecycleTest, AStallOutlastsALostQueueAndEndsWithAStep) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Pass(absl::Seconds(61), absl::Seconds(1));
  ASSERT_THAT(world_.job(job).record.conditions, ElementsAre("Stalled"));

  world_.actors["queue-0"].silent = true;
  world_.Pass(absl::Seconds(11));
  ASSERT_EQ(world_.State(job), JobState::kRecovering);
  world_.actors["queue-0"].silent = false;
  world_.Pass(absl::Seconds(1));
  ASSERT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_THAT(world_.job(job).record.conditions, ElementsAre("Stalled"));
  EXPECT_THAT(Told("moving"), IsEmpty());

  world_.Step(job, 0);
  EXPECT_THAT(world_.job(job).record.conditions, IsEmpty());
  EXPECT_THAT(Told("moving"), ElementsAre("steps advance again"));
}

TEST_F(LifecycleTest, ADaemonThatFailsFailsTheJobWithItsCause) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Say("rollout-0", job, "failed", "model.path /m has no config.json");
  world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kFailed);
  EXPECT_THAT(world_.job(job).record.message, HasSubstr("no config.json"));
}

TEST_F(LifecycleTest, AQueueThatRefusesTheSpecFailsTheJobWithItsWords) {
  world_.StartFleet();
  world_.queues["queue-0"].answers = false;
  const std::string job = world_.Submit("digits");
  const auto call = world_.history.back();
  world_.core->OnSetJobAnswer(
      world_.now(), call, absl::InvalidArgumentError("train.jsonl line 3: no field \"question\""));
  world_.queues["queue-0"].answers = true;
  world_.Pass(absl::Seconds(12));

  EXPECT_EQ(world_.State(job), JobState::kFailed);
  EXPECT_THAT(world_.job(job).record.message, HasSubstr("line 3"));
}

// A controller that shuts down cancels its own calls, and its successor calls again.
TEST_F(LifecycleTest, ACallToTheQueueThatWasCancelledFailsNoJob) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.queues["queue-0"].answers = false;
  world_.Start("rollout-1", Role::kRollout);
  world_.Settle();
  world_.core->OnSetJobAnswer(world_.now(), world_.history.back(), absl::CancelledError("stopped"));
  world_.Settle();
  EXPECT_EQ(world_.State(job), JobState::kRunning);
  world_.queues["queue-0"].answers = true;
  world_.Pass(absl::Seconds(5));
  EXPECT_EQ(world_.State(job), JobState::kRunning);
}

TEST_F(LifecycleTest, AQueueShortOfMemoryFailsTheJobAtOnceAndFreesItsDaemons) {
  world_.StartFleet();
  world_.queues["queue-0"].answers = false;
  const std::string job = world_.Submit("digits");
  world_.core->OnSetJobAnswer(
      world_.now(), world_.history.back(),
      absl::FailedPreconditionError(
          "the job needs at least 20000 B of the queue's memory, and the queue may use 10000 B"));
  world_.queues["queue-0"].answers = true;
  world_.Pass(absl::Seconds(12));

  EXPECT_EQ(world_.State(job), JobState::kFailed);
  EXPECT_THAT(world_.job(job).record.message, HasSubstr("20000 B of the queue's memory"));
  EXPECT_TRUE(world_.job(job).assign.workers.empty());
}

TEST_F(LifecycleTest, AStartThatTakesTooLongSaysWhyTheQueueDidNotTakeTheJob) {
  world_.StartFleet();
  world_.queues["queue-0"].answers = false;
  const std::string job = world_.Submit("digits");
  world_.Pass(absl::Minutes(5), absl::Seconds(5));

  EXPECT_EQ(world_.job(job).record.code, "SLUICE-CTL-0013");
  EXPECT_THAT(world_.job(job).record.message,
              HasSubstr("queue queue-0 has not taken the job yet: no answer"));
}

TEST_F(LifecycleTest, AQueueThatDoesNotCloseItsBooksDoesNotHoldTheEnd) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  world_.Step(job, 0);
  world_.queues["queue-0"].answers = false;
  Finish(job);
  world_.Pass(absl::Seconds(16));

  EXPECT_EQ(world_.State(job), JobState::kSucceeded);
  EXPECT_FALSE(world_.job(job).record.ledger_final);
}

TEST_F(LifecycleTest, EventsAreNumberedWithoutGapsAndStoredOnce) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  TrainerTells("checkpoint", "/ckpt/step-20");
  EXPECT_TRUE(world_.actors["trainer-0"].events.empty());
  EXPECT_EQ(world_.job(job).record.checkpoint, "/ckpt/step-20");

  const std::vector<Event> events = world_.Events(job);
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].seq, i + 1);
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const Event& e) { return e.code == "checkpoint"; }),
            1);
}

TEST_F(LifecycleTest, TheResultTellsWhatTheEvaluationsCameTo) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  EXPECT_EQ(world_.job(job).record.eval.versions, 0);

  const EvalSummary eval{.versions = 3,
                         .first = 0.1,
                         .last = 0.7,
                         .best = 0.8,
                         .best_version = 50,
                         .best_checkpoint = "/ckpt/step-50"};
  world_.Evaluated(job, eval);
  Finish(job);
  world_.Pass(absl::Seconds(16));

  EXPECT_EQ(world_.ResultOfJob(job).eval, eval);
}

TEST_F(LifecycleTest, AJobThatWaitsForADaemonThatIsRegisteredAndSilentNamesIt) {
  world_.StartFleet();
  world_.actors["trainer-0"].silent = true;
  world_.Pass(kSuspectAfter);
  const std::string job = world_.Submit("digits");
  EXPECT_EQ(world_.State(job), JobState::kWaiting);

  const std::vector<Edge> chain = FindChain(world_.core->WaitsOf(world_.now(), world_.job(job)));
  ASSERT_EQ(chain.size(), 2u);
  EXPECT_EQ(chain[0].cause, "waits for 1 of 1 trainer");
  EXPECT_EQ(chain[0].next, "it starts when trainer-0 is heard again, or others have registered");
  EXPECT_THAT(chain[1].cause, HasSubstr("trainer-0 has been silent for "));
  EXPECT_EQ(chain[1].next, "trainer-0 is given up");
}

TEST_F(LifecycleTest, ACheckpointWhoseWriterDiedBeforeItToldIsKnownFromTheTrainerThatLoadsIt) {
  world_.StartFleet();
  const std::string job = world_.Run("digits");
  TrainerTells("checkpoint_loaded", "/ckpt/step-60");
  EXPECT_EQ(world_.job(job).record.checkpoint, "/ckpt/step-60");
}

TEST_F(LifecycleTest, AFreedFleetTakesTheNextJob) {
  world_.StartFleet();
  const std::string first = world_.Run("first");
  const std::string second = world_.Submit("second");
  EXPECT_EQ(world_.State(second), JobState::kWaiting);

  const std::vector<Edge> waits = world_.core->WaitsOf(world_.now(), world_.job(second)).edges;
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].cause, "waits for 1 of 1 trainer, 1 of 1 rollout");
  EXPECT_EQ(waits[0].next,
            "it starts when they are free, or others have registered; job first has trainer-0 and "
            "rollout-0");

  Finish(first);
  world_.Leave();
  world_.AllReady(second);
  EXPECT_EQ(world_.State(second), JobState::kRunning);
}

TEST_F(LifecycleTest, ADrainedRolloutLeavesWithoutCountingAsARestart) {
  world_.StartFleet(2);
  const std::string job = world_.Run("digits");
  world_.actors["rollout-1"].draining = true;
  world_.Settle();
  EXPECT_NE(world_.job(job).assign.Find("rollout-1"), nullptr);

  world_.Kill("rollout-1");
  world_.Settle();
  EXPECT_EQ(world_.job(job).assign.Find("rollout-1"), nullptr);
  EXPECT_EQ(world_.job(job).record.restarts.count("rollout"), 0u);
}

TEST_F(LifecycleTest, ARolloutThatJoinsARunningJobIsListedToTheQueueAndItsPeers) {
  world_.StartFleet(1);
  const std::string job = world_.Run("digits");
  world_.Start("rollout-1", Role::kRollout);
  world_.Settle();

  EXPECT_EQ(world_.history.back().workers.size(), 4u);
  EXPECT_EQ(world_.actors["trainer-0"].desired.assignments[0].peers.size(), 4u);
  EXPECT_EQ(world_.job(job).assign.trainer_incarnation, 1);
}

}  // namespace
}  // namespace sluice::controller
