#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/services/queue/core/harness.h"

namespace sluice::queue {
namespace {

class TasksTest : public testing::Test {
 protected:
  void SetUp() override { StartWithOneGroup(h_); }
  // Starts the job, and samples and seals one group of two members.
  static void StartWithOneGroup(Harness& h) {
    h.Start();
    const auto admitted = h.Admitted(2);
    h.SampleAll(h.Rollout(), *admitted, {1, 0});
  }

  absl::StatusOr<LeaseTasksAnswer> Lease(uint32_t count = 10, uint32_t generation = 0) {
    return h_.Call<LeaseTasksAnswer>(
        h_.Reward(),
        LeaseTasks{.request = h_.Request(), .rooms = {{"cpu", count}}, .generation = generation});
  }

  Harness h_;
};

TEST_F(TasksTest, ASealedMemberBecomesATaskWithItsRowAndInputs) {
  const auto leased = Lease();
  ASSERT_EQ(leased->tasks.size(), 2u);

  const TaskGrant& task = leased->tasks[0];
  EXPECT_EQ(task.name, "reward");
  EXPECT_FALSE(task.row.json.empty());
  EXPECT_EQ(task.finish, Finish::kStop);
  EXPECT_EQ(task.tries, 3u);
  ASSERT_EQ(task.fields.size(), 1u);  // messages, which is small enough to come along.
  EXPECT_TRUE(h_.job()
                  .Read(h_.Reward(), false, task.lease.id,
                        {{.owner = task.owner}, {.owner = leased->tasks[1].owner}})
                  .ok());
}

TEST_F(TasksTest, ARepeatedLeaseCallIsAnsweredTheSame) {
  const LeaseTasks ask{.request = h_.Request(), .rooms = {{"cpu", 1}}};
  const auto first = h_.Call<LeaseTasksAnswer>(h_.Reward(), ask);
  const auto again = h_.Call<LeaseTasksAnswer>(h_.Reward(), ask);
  EXPECT_TRUE(again->repeat);
  EXPECT_EQ(again->tasks[0].lease.id, first->tasks[0].lease.id);
  EXPECT_EQ(Lease()->tasks.size(), 1u);
}

// The task's result, with these rows of rew_tok.
Record ResultWith(const TaskGrant& task, Field rewards) {
  return {.owner = task.owner,
          .task = task.id,
          .lease = task.lease.id,
          .fields = {TextField("reward_status", "ok"),
                     MakeField<double>("task_reward", Dtype::kF64, {1}), std::move(rewards)},
          .last = true};
}

// A part that has a rule `when` of which the answer's source is none.
TEST(RewardPartsTest, APartThatDoesNotApplyIsNanAndDoesNotRefuseTheScore) {
  Spec spec = SmallSpec();
  spec.tasks[0].produces.push_back("reward_parts");
  Harness h(spec);
  h.Start();
  h.SampleAll(h.Rollout(), *h.Admitted(2), {1, 0});
  const auto leased = h.Call<LeaseTasksAnswer>(
      h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 10}}});
  const TaskGrant& task = leased->tasks[0];
  EXPECT_EQ(h.PutOne(h.Reward(), ResultWith(task, MakeField<double>("reward_parts", Dtype::kF64,
                                                                    {std::nan(""), 1}))),
            absl::OkStatus());
  EXPECT_EQ(h.job().group(0)->members[*task.owner.member].task_reward, 1);
}

TEST(TokenRewardsTest, ThoseThatAreNotOfTokensOfTheMemberAreRefused) {
  Spec spec = SmallSpec();
  spec.tasks[0].produces.push_back("rew_tok");
  Harness h(spec);
  h.Start();
  h.SampleAll(h.Rollout(), *h.Admitted(2), {1, 0});
  const auto leased = h.Call<LeaseTasksAnswer>(
      h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 10}}});
  ASSERT_EQ(leased->tasks.size(), 2u);
  const TaskGrant& task = leased->tasks[0];
  const double kNan = std::nan("");
  // The prompt has tokens 0 to 3, and the member 4 to 6.
  const std::vector<double> wrong[] = {{3, 1},    {7, 1},       {4.5, 1},     {-1, 1},
                                       {5, 1, 5}, {5, 1, 5, 1}, {5, 1, 4, 1}, {4, 1, 5, 1, 7, 0}};
  for (const std::vector<double>& rows : wrong) {
    const absl::Status refused =
        h.PutOne(h.Reward(), ResultWith(task, MakeField<double>("rew_tok", Dtype::kF64, rows)));
    EXPECT_EQ(ReasonOf(refused), "BAD_FIELD") << refused;
  }
  for (const std::vector<double>& rows : {std::vector<double>{5, kNan}, {kNan, 5}, {5, INFINITY}})
    EXPECT_EQ(ReasonOf(h.PutOne(h.Reward(),
                                ResultWith(task, MakeField<double>("rew_tok", Dtype::kF64, rows)))),
              "NOT_FINITE");
  EXPECT_EQ(ReasonOf(h.PutOne(h.Reward(),
                              ResultWith(task, MakeField<float>("rew_tok", Dtype::kF32, {5, 1})))),
            "BAD_FIELD");
  EXPECT_EQ(h.job().Stats().groups.at("accepted"), 0u);

  // What is right is stored, and comes with the batch's data.
  const Field right = MakeField<double>("rew_tok", Dtype::kF64, {4, 0.5, 6, -0.25});
  ASSERT_EQ(h.PutOne(h.Reward(), ResultWith(task, right)), absl::OkStatus());
  ASSERT_TRUE(h.PutReward(leased->tasks[1], 0).ok());
  EXPECT_EQ(h.job().Stats().groups.at("accepted"), 1u);
  const auto read =
      h.job().Read({"controller", 0}, true, {}, {{.owner = task.owner, .names = {"rew_tok"}}});
  ASSERT_TRUE(read.ok());
  ASSERT_EQ(read->records.size(), 1u);
  EXPECT_EQ(read->records[0].fields[0].bytes, right.bytes);
}

TEST_F(TasksTest, TheLastScoreCompletesTheGroup) {
  const auto leased = Lease();
  ASSERT_TRUE(h_.PutReward(leased->tasks[0], 1).ok());
  EXPECT_EQ(h_.job().Stats().groups.at("accepted"), 0u);
  ASSERT_TRUE(h_.PutReward(leased->tasks[1], 0).ok());
  EXPECT_EQ(h_.job().Stats().groups.at("accepted"), 1u);
}

TEST_F(TasksTest, AScoreAgainIsARepeatAndADifferingOneAnAlarm) {
  const auto leased = Lease();
  ASSERT_TRUE(h_.PutReward(leased->tasks[0], 1).ok());
  EXPECT_TRUE(h_.PutReward(leased->tasks[0], 1).ok());
  EXPECT_EQ(ReasonOf(h_.PutReward(leased->tasks[0], 0.5)), "CONFLICT");
  EXPECT_EQ(h_.job().group(0)->members[0].task_reward, 1);
  EXPECT_EQ(h_.alarms.size(), 1u);
}

TEST_F(TasksTest, ScoresThatAreNotFiniteOrNotThereAreRefused) {
  const auto leased = Lease();
  EXPECT_EQ(ReasonOf(h_.PutReward(leased->tasks[0], std::nan(""))), "NOT_FINITE");

  Record none{.owner = leased->tasks[0].owner,
              .task = leased->tasks[0].id,
              .lease = leased->tasks[0].lease.id,
              .fields = {TextField("reward_status", "ok")},
              .last = true};
  EXPECT_EQ(ReasonOf(h_.PutOne(h_.Reward(), none)), "BAD_FIELD");

  none.fields = {TextField("surprise", "ok")};
  EXPECT_EQ(ReasonOf(h_.PutOne(h_.Reward(), none)), "BAD_FIELD");
  EXPECT_TRUE(h_.PutReward(leased->tasks[0], 1).ok());
}

TEST_F(TasksTest, FieldsShowAllAtOnceWithTheLastRecord) {
  const auto leased = Lease();
  const TaskGrant& task = leased->tasks[0];
  ASSERT_TRUE(
      h_.PutOne(h_.Reward(), {.owner = task.owner,
                              .task = task.id,
                              .lease = task.lease.id,
                              .fields = {MakeField<double>("task_reward", Dtype::kF64, {1})}})
          .ok());
  EXPECT_FALSE(h_.job().group(0)->members[0].fields.contains("task_reward"));

  ASSERT_TRUE(h_.PutOne(h_.Reward(), {.owner = task.owner,
                                      .task = task.id,
                                      .lease = task.lease.id,
                                      .fields = {TextField("reward_status", "ok")},
                                      .last = true})
                  .ok());

  EXPECT_TRUE(h_.job().group(0)->members[0].fields.contains("task_reward"));
  EXPECT_EQ(h_.job().group(0)->members[0].fields.at("task_reward").round, 1u);
}

TEST_F(TasksTest, AnUnscorableMemberTakesItsGroupBelowTheMinimumAlong) {
  const auto leased = Lease();
  EXPECT_TRUE(h_.PutReward(leased->tasks[0], 0, "timeout").ok());
  EXPECT_EQ(h_.job().ledger().dropped.at("unscorable"), 2);
  EXPECT_EQ(h_.job().counters().reissued, 1);
  // A repeat is known, although the group is gone.
  EXPECT_TRUE(h_.PutReward(leased->tasks[0], 0, "timeout").ok());
  EXPECT_EQ(ReasonOf(h_.PutReward(leased->tasks[1], 1)), "LEASE_LOST");
}

TEST_F(TasksTest, AnyBytesOfARewardStatusAreShownAsText) {
  Spec spec = SmallSpec();
  spec.group_min = 1;
  Harness h(spec);
  StartWithOneGroup(h);
  const auto leased = h.Call<LeaseTasksAnswer>(
      h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 1}}});
  ASSERT_TRUE(h.PutReward(leased->tasks[0], 0, "\xc0" + std::string(1000, '\xbe')).ok());

  std::vector<std::string> causes;
  for (const PeekRow& row : h.job().Peek(PeekWhat::kTasks, "", h.now)) {
    const auto json = nlohmann::json::parse(row.json, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(json.is_object()) << row.json;
    causes.push_back(json.value("cause", ""));
  }

  EXPECT_THAT(causes, testing::Contains(testing::StartsWith("\\xc0\\xbe")));
}

TEST_F(TasksTest, AGroupStandsWithItsMinimumOfScoredMembers) {
  Spec spec = SmallSpec();
  spec.group_min = 1;
  Harness h(spec);
  StartWithOneGroup(h);

  const auto leased = h.Call<LeaseTasksAnswer>(
      h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 2}}});
  EXPECT_TRUE(h.PutReward(leased->tasks[0], 0, "timeout").ok());
  EXPECT_TRUE(h.PutReward(leased->tasks[1], 1).ok());
  EXPECT_EQ(h.job().Stats().groups.at("accepted"), 1u);
  EXPECT_EQ(h.job().ledger().dropped.at("unscorable"), 1);
}

TEST_F(TasksTest, OutOfTriesATaskIsADeadLetterWithItsCause) {
  for (int tries = 3; tries > 0; --tries) {
    const auto leased = Lease(1);
    ASSERT_EQ(leased->tasks[0].tries, static_cast<uint32_t>(tries));
    ASSERT_TRUE(h_.Call<ReleaseAnswer>(h_.Reward(), Release{.leases = {leased->tasks[0].lease.id},
                                                            .reason = ReleaseReason::kFault,
                                                            .cause = "judge strict: HTTP status "
                                                                     "500\xff"})
                    .ok());
  }

  EXPECT_EQ(h_.job().ledger().dropped.at("unscorable"), 2);

  const auto dead = h_.job().Peek(PeekWhat::kTasks, "dead_letter", h_.now);
  ASSERT_EQ(dead.size(), 1u);
  EXPECT_THAT(dead[0].json, testing::HasSubstr("gave it back: judge strict: HTTP status 500"));
  EXPECT_EQ(h_.alarms.back().code, "dead_letter");
}

TEST_F(TasksTest, ADrainUsesNoTryAndNotBeforeIsKept) {
  const auto leased = Lease(1);
  const Release release{.leases = {leased->tasks[0].lease.id},
                        .reason = ReleaseReason::kDrain,
                        .not_before = absl::Seconds(5)};
  EXPECT_EQ(h_.Call<ReleaseAnswer>(h_.Reward(), release)->released, 1u);
  EXPECT_TRUE(h_.Call<ReleaseAnswer>(h_.Reward(), release)->repeat);
  ASSERT_EQ(Lease(1)->tasks.size(), 1u);  // The other member's.

  const uint64_t call = h_.Send(
      h_.Reward(), LeaseTasks{.request = h_.Request(), .rooms = {{"cpu", 1}}, .generation = 0});
  EXPECT_FALSE(h_.Answered(call));
  EXPECT_EQ(h_.job().NextWake(), h_.now + absl::Seconds(5));

  h_.Advance(absl::Seconds(5));
  EXPECT_EQ(h_.Result<LeaseTasksAnswer>(call)->tasks[0].tries, 3u);
}

TEST_F(TasksTest, ALeaseThatRunsOutUsesATry) {
  Lease().IgnoreError();
  h_.Advance(absl::Seconds(61));
  const auto again = Lease();
  ASSERT_EQ(again->tasks.size(), 2u);
  EXPECT_EQ(again->tasks[0].tries, 2u);
}

// A task's lease can be renewed up to its deadline (10 s) and one lease time (60 s) after the
// grant.
TEST_F(TasksTest, ATaskCannotBeRenewedBeyondItsDeadline) {
  const auto leased = Lease();
  h_.now += absl::Seconds(50);
  EXPECT_TRUE(h_.Call<RenewAnswer>(h_.Reward(), Renew{})->lost.empty());
  h_.Advance(absl::Seconds(21));
  EXPECT_EQ(ReasonOf(h_.PutReward(leased->tasks[0], 1)), "LEASE_LOST");
}

TEST_F(TasksTest, AWaitForTasksNamesTheMemberThatStillRuns) {
  h_.ScoreAll();
  ASSERT_TRUE(h_.Admitted(1).ok());
  const uint64_t call =
      h_.Send(h_.Reward(),
              LeaseTasks{.request = h_.Request(), .rooms = {{"cpu", 1}}, .wait = absl::Seconds(3)});
  h_.Advance(absl::Seconds(3));

  const auto answer = h_.Result<LeaseTasksAnswer>(call);
  ASSERT_TRUE(answer->edge.has_value());
  EXPECT_EQ(answer->edge->on.daemon, "r1");
}

TEST_F(TasksTest, AScoreForADroppedMemberLostItsLease) {
  Spec spec = SmallSpec();
  spec.straggler = Straggler::kDrop;
  Harness h(spec);
  h.Start();
  const auto admitted = h.Admitted(2);
  h.Sample(h.Rollout(), admitted->grants[0], admitted->grants[0].members[0], {{{1, 0}, 3, 0}});

  const auto leased = h.Call<LeaseTasksAnswer>(
      h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 1}}});

  // All leases are renewed, so that none of them runs out with the straggler's wait.
  h.now += absl::Seconds(59);
  h.Load(h.Rollout(), {1, 0});
  h.Call<RenewAnswer>(h.Reward(), Renew{}).IgnoreError();

  // The straggler's wait is over: its group is dropped, and its prompt will be drawn again.
  h.Advance(absl::Seconds(1));

  EXPECT_EQ(h.job().ledger().dropped.at("straggler"), 2);
  EXPECT_EQ(ReasonOf(h.PutReward(leased->tasks[0], 1)), "LEASE_LOST");
  EXPECT_EQ(h.cancel.back().reason, "straggler");
  EXPECT_EQ(h.Admitted(2)->grants[0].row.ref.occurrence, 1u);
}

}  // namespace
}  // namespace sluice::queue
