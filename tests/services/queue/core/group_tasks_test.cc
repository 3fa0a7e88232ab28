#include "tests/services/queue/core/harness.h"

namespace sluice::queue {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// `reward` scores members; `judge` looks at the whole group once that is done, and writes a verdict
// and each member's rank.
Spec JudgedSpec() {
  Spec spec = SmallSpec();
  spec.max_rejected_steps = 2;
  spec.tasks.push_back({.name = "judge",
                        .needs = {"messages", "task_reward"},
                        .produces = {"verdict", "rank", "reward_status"},
                        .granularity = Granularity::kGroup,
                        .pool = "judges",
                        .deadline = absl::Seconds(10),
                        .tries = 2});
  return spec;
}

class GroupTasksTest : public testing::Test {
 protected:
  absl::StatusOr<LeaseTasksAnswer> Lease(const std::string& pool, uint32_t generation = 0) {
    return h_.Call<LeaseTasksAnswer>(h_.Reward(), LeaseTasks{.request = h_.Request(),
                                                             .rooms = {{pool, 10}},
                                                             .generation = generation,
                                                             .wait = absl::ZeroDuration()});
  }

  // Starts the job, and samples and seals one group of two members.
  void StartWithOneGroup() {
    h_.Start();
    h_.SampleAll(h_.Rollout(), *h_.Admitted(2), {1, 0});
  }

  absl::Status Judge(const TaskGrant& task, const std::string& verdict) {
    Record record{.owner = {.group = task.owner.group},
                  .task = task.id,
                  .lease = task.lease.id,
                  .fields = {TextField("verdict", verdict)},
                  .last = true};
    return h_.PutOne(h_.Reward(), record);
  }

  Harness h_{JudgedSpec()};
};

TEST_F(GroupTasksTest, AGroupsTaskIsReadyWhenAllStandingMembersHaveItsFields) {
  h_.Start();
  const auto admitted = h_.Admitted(2);
  h_.Sample(h_.Rollout(), admitted->grants[0], admitted->grants[0].members[0], {{{1, 0}, 3, 0}});
  h_.ScoreAll();
  EXPECT_TRUE(Lease("judges")->tasks.empty());

  h_.Sample(h_.Rollout(), admitted->grants[0], admitted->grants[0].members[1], {{{1, 0}, 3, 0}});
  EXPECT_TRUE(Lease("judges")->tasks.empty());

  h_.ScoreAll();
  const auto leased = Lease("judges");
  ASSERT_EQ(leased->tasks.size(), 1u);

  const TaskGrant& task = leased->tasks[0];
  EXPECT_FALSE(task.owner.member.has_value());
  EXPECT_EQ(task.members.size(), 2u);
  EXPECT_THAT(task.wants, ElementsAre("messages", "task_reward"));
  EXPECT_EQ(h_.job().Stats().groups.at("accepted"), 0u) << "not complete without the verdict";

  ASSERT_TRUE(Judge(task, "accept").ok());
  EXPECT_EQ(h_.job().Stats().groups.at("accepted"), 1u);
  EXPECT_TRUE(Judge(task, "accept").ok()) << "a repeat";
  EXPECT_EQ(ReasonOf(Judge(task, "reject")), "CONFLICT");
}

TEST_F(GroupTasksTest, ItWritesFieldsOfItsMembersTooAndAllShowAtOnce) {
  StartWithOneGroup();
  h_.ScoreAll();
  const TaskGrant task = Lease("judges")->tasks.at(0);
  for (uint32_t m : {0u, 1u}) {
    ASSERT_TRUE(
        h_.PutOne(h_.Reward(), {.owner = task.members[m],
                                .task = task.id,
                                .lease = task.lease.id,
                                .fields = {MakeField<int32_t>("rank", Dtype::kI32, {int32_t(m)})}})
            .ok());
    EXPECT_FALSE(h_.job().group(0)->members[m].fields.contains("rank"));
  }

  EXPECT_EQ(ReasonOf(Judge(task, "perhaps")), "BAD_FIELD");

  ASSERT_TRUE(Judge(task, "accept").ok());
  EXPECT_TRUE(h_.job().group(0)->members[1].fields.contains("rank"));
  EXPECT_TRUE(h_.job().group(0)->fields.contains("verdict"));
}

TEST_F(GroupTasksTest, ARejectFreesTheSlotAndIsCountedByItsReason) {
  StartWithOneGroup();
  h_.ScoreAll();
  ASSERT_TRUE(Judge(Lease("judges")->tasks.at(0), "reject:too_easy").ok());
  EXPECT_EQ(h_.job().ledger().dropped.at("filtered"), 2);
  EXPECT_EQ(h_.job().counters().filtered.at("too_easy"), 1);
  EXPECT_EQ(h_.job().Stats().slots.at("used"), 0u);
}

TEST_F(GroupTasksTest, OutOfTriesTheGroupIsUnscorableAndItsPromptDrawnAgain) {
  StartWithOneGroup();
  h_.ScoreAll();
  for (int i = 0; i < 2; ++i) {  // The judge has two tries.
    const Id16 lease = Lease("judges")->tasks.at(0).lease.id;
    EXPECT_TRUE(h_.Call<ReleaseAnswer>(h_.Reward(),
                                       Release{.leases = {lease}, .reason = ReleaseReason::kFault})
                    .ok());
  }

  EXPECT_EQ(h_.job().ledger().dropped.at("unscorable"), 2);
  EXPECT_EQ(h_.Admitted(2)->grants[0].row.ref.occurrence, 1u);
}

TEST_F(GroupTasksTest, AMemberThatLeavesMakesTheOthersTaskReady) {
  Spec spec = JudgedSpec();
  spec.group_min = 1;
  Harness h(spec);
  h.Start();
  const auto admitted = h.Admitted(2);
  h.Sample(h.Rollout(), admitted->grants[0], admitted->grants[0].members[0], {{{1, 0}, 3, 0}});
  h.ScoreAll();

  const DropItem drop{.ref = {admitted->grants[0].group, 1, 1},
                      .lease = admitted->grants[0].members[1].lease.id,
                      .reason = "env_lost"};
  EXPECT_TRUE(h.Call<ItemsAnswer>(h.Rollout(), Drop{{drop}})->items[0].status.ok());

  const auto leased = h.Call<LeaseTasksAnswer>(
      h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"judges", 1}}});
  ASSERT_EQ(leased->tasks.size(), 1u);
  EXPECT_EQ(leased->tasks[0].members.size(), 1u);
}

// Generations. ------------------------------------------------------------------------------------

TEST_F(GroupTasksTest, TheFirstLeasePinsAGroupToItsGeneration) {
  StartWithOneGroup();
  const auto first = h_.Call<LeaseTasksAnswer>(
      h_.Reward(), LeaseTasks{.request = h_.Request(), .rooms = {{"cpu", 1}}, .generation = 5});
  ASSERT_EQ(first->tasks.size(), 1u);
  EXPECT_TRUE(Lease("cpu", 6)->tasks.empty()) << "one group, one generation";
  EXPECT_EQ(Lease("cpu", 5)->tasks.size(), 1u);
}

// A generation is gone if none of its workers has called for the straggler's wait of 60 s, while a
// worker of another generation calls.
TEST_F(GroupTasksTest, AGroupOfAGenerationThatIsGoneIsScoredAgainWhole) {
  StartWithOneGroup();
  const auto old = h_.Call<LeaseTasksAnswer>(
      h_.Reward(), LeaseTasks{.request = h_.Request(), .rooms = {{"cpu", 1}}, .generation = 5});
  ASSERT_TRUE(h_.PutReward(old->tasks[0], 0.25).ok());

  h_.Advance(absl::Seconds(50));
  EXPECT_TRUE(Lease("cpu", 6)->tasks.empty());

  h_.Advance(absl::Seconds(15));  // 65 s since generation 5 was seen.
  const auto again = Lease("cpu", 6);
  ASSERT_EQ(again->tasks.size(), 2u) << "both members, the one that had its score too";
  EXPECT_EQ(again->tasks[0].round, 2u);

  for (const TaskGrant& task : again->tasks) ASSERT_TRUE(h_.PutReward(task, 0.75).ok());
  EXPECT_EQ(h_.job().group(0)->members[0].task_reward, 0.75);
  EXPECT_EQ(h_.job().group(0)->members[0].fields.at("task_reward").round, 2u);
  EXPECT_TRUE(h_.PutReward(old->tasks[0], 0.25).ok())
      << "the old result, repeated, changes nothing";
  EXPECT_EQ(h_.job().group(0)->members[0].task_reward, 0.75);
}

TEST_F(GroupTasksTest, WithoutAnotherGenerationAGroupWaitsForItsOwn) {
  StartWithOneGroup();
  const auto old = h_.Call<LeaseTasksAnswer>(
      h_.Reward(), LeaseTasks{.request = h_.Request(), .rooms = {{"cpu", 1}}, .generation = 5});
  ASSERT_TRUE(h_.PutReward(old->tasks[0], 0.25).ok());
  h_.Advance(absl::Hours(2));

  const auto rest = Lease("cpu", 5);
  ASSERT_EQ(rest->tasks.size(), 1u);
  EXPECT_EQ(rest->tasks[0].round, 1u);
}

// Retask. -----------------------------------------------------------------------------------------

TEST_F(GroupTasksTest, RescoreGivesGroupsInNoBatchANextRoundAndRepeatedMovesNothing) {
  StartWithOneGroup();
  h_.ScoreAll();
  ASSERT_TRUE(Judge(Lease("judges")->tasks.at(0), "accept").ok());

  const Caller controller{"controller", 0};
  EXPECT_EQ(h_.Call<RetaskAnswer>(controller, Retask{.generation = 9})->count, 0u)
      << "nothing was scored by generation 9";
  EXPECT_EQ(h_.Call<RetaskAnswer>(controller, Retask{.task = "reward"})->count, 1u);
  EXPECT_EQ(h_.Call<RetaskAnswer>(controller, Retask{.task = "reward"})->count, 0u);
  EXPECT_EQ(h_.job().Stats().groups.at("accepted"), 0u);
  EXPECT_EQ(h_.ScoreAll(), 2);

  const auto judge = Lease("judges");  // It needs the reward, so it judges again too.
  ASSERT_EQ(judge->tasks.size(), 1u);
  EXPECT_EQ(judge->tasks[0].round, 2u);

  ASSERT_TRUE(Judge(judge->tasks[0], "accept").ok());
  EXPECT_EQ(h_.job().Stats().groups.at("accepted"), 1u);
  EXPECT_EQ(ReasonOf(h_.Call<RetaskAnswer>(controller, Retask{.task = "none"}).status()),
            "BAD_TASK");
  EXPECT_EQ(ReasonOf(h_.Call<RetaskAnswer>(h_.Reward(), Retask{}).status()), "WRONG_ROLE");
}

TEST_F(GroupTasksTest, ABatchKeepsTheRoundItWasCutWith) {
  h_.Start();
  h_.SampleAll(h_.Rollout(), *h_.Admitted(4), {1, 0});
  h_.ScoreAll();
  const auto judges = Lease("judges");
  for (const TaskGrant& task : judges->tasks) ASSERT_TRUE(Judge(task, "accept").ok());

  const auto batch = h_.Acquired(0);
  ASSERT_TRUE(batch->filled);
  EXPECT_EQ(h_.Call<RetaskAnswer>({"controller", 0}, Retask{})->count, 0u);
  EXPECT_TRUE(h_.ApplyBatch(*batch).ok());
}

TEST_F(GroupTasksTest, ReadmitLetsQuarantinedPromptsBeDrawnAgain) {  // reissues = 1
  h_.Start();
  uint64_t index = 0;
  for (int i = 0; i < 2; ++i) {
    const auto admitted = h_.Admitted(2);
    index = admitted->grants[0].row.ref.index;
    const DropItem drop{.ref = {.group = admitted->grants[0].group},
                        .lease = admitted->grants[0].members[0].lease.id,
                        .reason = "nonfinite"};
    EXPECT_TRUE(h_.Call<ItemsAnswer>(h_.Rollout(), Drop{{drop}})->items[0].status.ok());
  }

  EXPECT_EQ(h_.job().Stats().groups.at("quarantined"), 1u);

  const Retask readmit{.mode = RetaskMode::kReadmit};
  EXPECT_EQ(h_.Call<RetaskAnswer>({"controller", 0}, readmit)->count, 1u);
  EXPECT_EQ(h_.Call<RetaskAnswer>({"controller", 0}, readmit)->count, 0u);
  EXPECT_EQ(h_.Admitted(2)->grants[0].row.ref.index, index);
}

TEST_F(GroupTasksTest, AWaitForABatchNamesTheGroupsTask) {
  StartWithOneGroup();
  h_.ScoreAll();
  const uint64_t waits = h_.Send(h_.Trainer(), AcquireBatch{.k = 0, .wait = absl::ZeroDuration()});
  EXPECT_THAT(h_.Result<AcquireBatchAnswer>(waits)->edge->on.id, HasSubstr("/judge"));
}

}  // namespace
}  // namespace sluice::queue
