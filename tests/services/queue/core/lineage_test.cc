#include <nlohmann/json.hpp>

#include "tests/services/queue/core/harness.h"

// Generations of the rewards: which one scores what, how one takes over from another, and which
// steps were trained on which.
namespace sluice::queue {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;
using Ranges = std::vector<std::pair<int64_t, int64_t>>;
using PeekJson = nlohmann::json;

constexpr uint32_t kOldGeneration = 0x7c1f09aa, kNewGeneration = 0x0000002b;

// Lineage. ----------------------------------------------------------------------------------------

TEST(LineageTest, StepsInSuccessionAreOneRange) {
  Lineage lineage;
  lineage.NoteStep(0, {1});
  lineage.NoteStep(1, {1, 2});
  lineage.NoteStep(2, {2});
  lineage.NoteStep(3, {1});
  EXPECT_EQ(lineage.Until(4).at(1).steps, (Ranges{{0, 1}, {3, 3}}));
  EXPECT_EQ(lineage.Until(4).at(2).steps, (Ranges{{1, 2}}));
  EXPECT_EQ(lineage.Until(2).at(1).steps, (Ranges{{0, 1}}));
  EXPECT_EQ(lineage.Until(2).at(2).steps, (Ranges{{1, 1}}));
}

TEST(LineageTest, AStepThatIsTrainedAgainReplacesWhatCameAfterIt) {
  Lineage lineage;
  for (int64_t k = 0; k < 5; ++k) lineage.NoteStep(k, {1});
  lineage.NoteStep(2, {2});
  EXPECT_EQ(lineage.Until(100).at(1).steps, (Ranges{{0, 1}}));
  EXPECT_EQ(lineage.Until(100).at(2).steps, (Ranges{{2, 2}}));
}

TEST(LineageTest, TheFirstVersionsThatAreToldOfAGenerationStay) {
  Lineage lineage;
  lineage.NoteRewards(1, {{"right", "aa"}});
  lineage.NoteRewards(1, {{"right", "bb"}});
  EXPECT_THAT(lineage.Until(1).at(1).rewards, ElementsAre(Pair("right", "aa")));
}

TEST(LineageTest, AWorkerThatNamesANewGenerationInEachCallFillsNoMemory) {
  Lineage lineage;
  lineage.NoteStep(0, {1});
  for (uint32_t generation = 2; generation < 5000; ++generation)
    lineage.NoteRewards(generation, {{"right", "aa"}});
  EXPECT_THAT(lineage.Until(1), SizeIs(1000));
  EXPECT_EQ(lineage.Until(1).at(1).steps, (Ranges{{0, 0}})) << "what was trained is kept longest";
}

// The same by a set of pairs, over random runs with restores.
TEST(LineageTest, ItAgreesWithASetOfStepsAndGenerations) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SplitMix64 random(seed);
    Lineage lineage;
    std::set<std::pair<uint32_t, int64_t>> slow;
    int64_t next = 0;
    for (int i = 0; i < 200; ++i) {
      if (random.Below(10) == 0) next -= static_cast<int64_t>(random.Below(next + 1));
      std::set<uint32_t> generations;
      for (uint32_t g = 1; g <= 3; ++g) {
        if (random.Below(2) == 0) generations.insert(g);
      }
      lineage.NoteStep(next, generations);
      std::erase_if(slow, [&](const auto& pair) { return pair.second >= next; });
      for (const uint32_t g : generations) slow.insert({g, next});
      ++next;

      std::set<std::pair<uint32_t, int64_t>> seen;
      for (const auto& [g, generation] : lineage.Until(next)) {
        for (const auto& [first, last] : generation.steps) {
          for (int64_t k = first; k <= last; ++k) seen.insert({g, k});
        }
      }
      ASSERT_EQ(seen, slow) << "seed " << seed << ", step " << i;
    }
  }
}

// In a job. ---------------------------------------------------------------------------------------

class GenerationsTest : public testing::Test {
 protected:
  absl::StatusOr<LeaseTasksAnswer> Lease(uint32_t generation, std::vector<uint32_t> earlier = {},
                                         uint32_t count = 1000) {
    return h_.Call<LeaseTasksAnswer>(
        h_.Reward(), LeaseTasks{.request = h_.Request(),
                                .rooms = {{"cpu", count}},
                                .generation = generation,
                                .wait = absl::ZeroDuration(),
                                .earlier = std::move(earlier),
                                .rewards = {{"right", GenerationName(generation)}}});
  }
  void Score(const LeaseTasksAnswer& leased) {
    for (const TaskGrant& task : leased.tasks)
      EXPECT_TRUE(h_.PutReward(task, *task.owner.member).ok());
  }
  void SampleGroups(uint32_t members) {
    h_.SampleAll(h_.Rollout(), *h_.Admitted(members), {h_.trainer_incarnation, h_.loaded});
  }
  void TrainStep(bool want_cursor = false) {
    const auto batch = h_.Acquired(h_.job().version());
    ASSERT_TRUE(batch.ok() && batch->filled) << batch.status();
    const auto applied = h_.ApplyBatch(*batch, want_cursor);
    ASSERT_TRUE(applied.ok()) << applied.status();
    if (want_cursor) h_.cursor = applied->cursor;
    h_.Publish();
  }
  // What Peek shows of the lineage, by generation.
  std::map<std::string, PeekJson> Generations() {
    std::map<std::string, PeekJson> out;
    for (const PeekRow& row : h_.job().Peek(PeekWhat::kLineage, "", h_.now)) {
      out[row.node.id] = PeekJson::parse(row.json);
      out[row.node.id]["state"] = row.state;
    }
    return out;
  }

  Harness h_;
};

TEST_F(GenerationsTest, AGenerationWhoseWorkersAreGoneIsNotInUse) {
  h_.Start();
  SampleGroups(2);
  ASSERT_TRUE(Lease(kOldGeneration).ok());
  EXPECT_EQ(Generations().at(GenerationName(kOldGeneration))["state"], "in_use");

  const Caller reward = h_.Reward();
  ASSERT_TRUE(h_.Call<ReleaseAnswer>({.worker = "controller", .incarnation = 0},
                                     Release{.worker = reward.worker,
                                             .incarnation = reward.incarnation,
                                             .reason = ReleaseReason::kLost})
                  .ok());
  EXPECT_EQ(Generations().at(GenerationName(kOldGeneration))["state"], "past");
}

TEST_F(GenerationsTest, AWorkerEndsGroupsOfAnEarlierGenerationAndBeginsNoneByIt) {
  h_.Start();
  SampleGroups(4);  // Two groups of two members.
  const auto first = Lease(kOldGeneration, {}, 1);
  ASSERT_THAT(first->tasks, SizeIs(1));
  EXPECT_EQ(first->tasks[0].generation, kOldGeneration);

  // The rewards have changed: the rest of the first group is scored as it was begun.
  const auto rest = Lease(kNewGeneration, {kOldGeneration});
  ASSERT_THAT(rest->tasks, SizeIs(3));
  EXPECT_EQ(rest->tasks[0].owner.group, first->tasks[0].owner.group);
  EXPECT_EQ(rest->tasks[0].generation, kOldGeneration);
  EXPECT_EQ(rest->tasks[1].generation, kNewGeneration);
  EXPECT_EQ(rest->tasks[2].generation, kNewGeneration);
  EXPECT_THAT(rest->unused, IsEmpty()) << "a score of it is still to come";
}

TEST_F(GenerationsTest, AWorkerIsToldAtOnceWhenAnEarlierGenerationIsNeededNoMore) {
  h_.Start();
  SampleGroups(2);
  const auto leased = Lease(kOldGeneration);
  ASSERT_THAT(leased->tasks, SizeIs(2));
  Score(*leased);

  const uint64_t call = h_.Send(h_.Reward(), LeaseTasks{.request = h_.Request(),
                                                        .rooms = {{"cpu", 1}},
                                                        .generation = kNewGeneration,
                                                        .earlier = {kOldGeneration}});
  ASSERT_TRUE(h_.Answered(call)) << "it does not wait for tasks that will not come";
  EXPECT_THAT(h_.Result<LeaseTasksAnswer>(call)->unused, ElementsAre(kOldGeneration));
}

TEST_F(GenerationsTest, RenewsKeepEveryGenerationOfTheWorkerAlive) {  // wait = 60 s
  h_.Start();
  SampleGroups(2);
  ASSERT_THAT(Lease(kOldGeneration, {}, 1)->tasks, SizeIs(1));
  ASSERT_THAT(Lease(kNewGeneration, {kOldGeneration}, 1)->tasks, SizeIs(1));
  for (int i = 0; i < 4; ++i) {
    h_.Advance(absl::Seconds(20));
    EXPECT_TRUE(h_.Call<RenewAnswer>(h_.Reward(), Renew{}).ok());
  }
  EXPECT_EQ(h_.job().counters().rescored, 0);

  // The next call no longer names the old generation, so its group is for others in the end,
  // although none of its scores came.
  ASSERT_THAT(Lease(kNewGeneration)->tasks, IsEmpty());
  h_.Advance(absl::Seconds(55));
  ASSERT_TRUE(Lease(kNewGeneration).ok());
  h_.Advance(absl::Seconds(10));
  const auto again = Lease(kNewGeneration);
  ASSERT_THAT(again->tasks, SizeIs(2));
  EXPECT_EQ(again->tasks[0].generation, kNewGeneration);
}

TEST_F(GenerationsTest, AScoreOfAnotherGenerationThanTheGroupsIsRefused) {
  Spec spec = SmallSpec();
  spec.tasks[0].produces.push_back("reward_gen");
  Harness h(spec);
  h.Start();
  h.SampleAll(h.Rollout(), *h.Admitted(2), {1, 0});
  const auto leased = h.Call<LeaseTasksAnswer>(
      h.Reward(),
      LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 10}}, .generation = kOldGeneration});
  const TaskGrant& task = leased->tasks.at(0);
  const auto put = [&](uint32_t generation) {
    return h.PutOne(h.Reward(),
                    {.owner = task.owner,
                     .task = task.id,
                     .lease = task.lease.id,
                     .fields = {TextField("reward_status", "ok"),
                                MakeField<double>("task_reward", Dtype::kF64, {1}),
                                MakeField<uint32_t>("reward_gen", Dtype::kNone, {generation})},
                     .last = true});
  };
  EXPECT_EQ(ReasonOf(put(kNewGeneration)), "BAD_FIELD");
  EXPECT_EQ(put(kOldGeneration), absl::OkStatus());
}

TEST_F(GenerationsTest, ItSaysWhichStepsWereTrainedOnWhichGeneration) {
  h_.Start();
  SampleGroups(4);
  Score(*Lease(kOldGeneration));
  TrainStep();
  SampleGroups(4);
  Score(*Lease(kOldGeneration, {}, 2));  // One of the two groups.
  Score(*Lease(kNewGeneration, {kOldGeneration}));
  TrainStep();
  SampleGroups(4);
  Score(*Lease(kNewGeneration));

  auto generations = Generations();
  EXPECT_EQ(generations["7c1f09aa"]["steps"], PeekJson::parse("[[0, 1]]"));
  EXPECT_EQ(generations["7c1f09aa"]["state"], "past");
  EXPECT_EQ(generations["7c1f09aa"]["rewards"], PeekJson::parse(R"({"right": "7c1f09aa"})"));
  EXPECT_EQ(generations["0000002b"]["steps"], PeekJson::parse("[[1, 1]]"));
  EXPECT_EQ(generations["0000002b"]["state"], "in_use");
  EXPECT_EQ(generations["0000002b"]["groups"]["accepted"], 2) << "those in no batch";

  // They are scored again by whichever generation there is now; what was trained stays.
  const Caller controller{"controller", 0};
  EXPECT_EQ(h_.Call<RetaskAnswer>(controller, Retask{.generation = kOldGeneration})->count, 0u);
  EXPECT_EQ(h_.Call<RetaskAnswer>(controller, Retask{.generation = kNewGeneration})->count, 2u);
  EXPECT_THAT(Lease(kOldGeneration)->tasks, SizeIs(4));
}

TEST_F(GenerationsTest, ARestoreForgetsTheStepsThatItGivesUp) {
  h_.Start();
  for (int k = 0; k < 3; ++k) {
    SampleGroups(4);
    Score(*Lease(k < 2 ? kOldGeneration : kNewGeneration));
    TrainStep(/*want_cursor=*/k == 0);
  }
  ASSERT_TRUE(RestartTrainer(h_, h_.cursor, "", RestoreMode::kRequeue).ok());
  EXPECT_EQ(Generations()["7c1f09aa"]["steps"], PeekJson::parse("[[0, 0]]"));
  EXPECT_EQ(Generations()["0000002b"]["steps"], PeekJson::parse("[]"));
}

TEST_F(GenerationsTest, TheCursorCarriesTheLineageToAQueueThatLostTheJob) {
  h_.Start();
  SampleGroups(4);
  Score(*Lease(kOldGeneration));
  TrainStep(/*want_cursor=*/true);

  Harness other(SmallSpec(), {1000}, /*queue_incarnation=*/2);
  other.trainer_incarnation = 1;
  ASSERT_TRUE(RestartTrainer(other, h_.cursor, "step-1").ok());
  const auto rows = other.job().Peek(PeekWhat::kLineage, "", other.now);
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(rows[0].node.id, "7c1f09aa");
  EXPECT_EQ(PeekJson::parse(rows[0].json)["steps"], PeekJson::parse("[[0, 0]]"));
  EXPECT_EQ(PeekJson::parse(rows[0].json)["rewards"]["right"], "7c1f09aa");
}

}  // namespace
}  // namespace sluice::queue
