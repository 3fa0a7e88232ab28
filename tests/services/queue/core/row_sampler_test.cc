#include "services/queue/core/row_sampler.h"

#include <algorithm>
#include <deque>

#include "services/queue/core/batch.h"
#include "tests/services/queue/core/harness.h"

namespace sluice::queue {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Spec SpecOf(Sampler sampler) {
  Spec spec = SmallSpec();
  spec.sampler = sampler;
  spec.level_up = 0.7;
  spec.level_window = 8;
  spec.max_staleness = 0;
  return spec;
}

std::shared_ptr<const RowSource> RowsWithLevels(uint64_t rows, int64_t levels) {
  return std::make_shared<Rows>(std::vector<uint64_t>{rows}, levels);
}

// Step k trained one group of 4 answers with this mean reward.
void Train(Prompts* prompts, int64_t k, const RowRef& row, double mean) {
  prompts->NoteTrained({.step = k, .row = row, .sum = 4 * mean, .answers = 4});
  prompts->NoteStep(k);
}

int64_t LevelOf(const RowRef& row, int64_t levels) {
  return 1 + static_cast<int64_t>(row.index) % levels;
}

TEST(LevelSamplerTest, TheNextLevelBeginsOnceTheLastAnswersAreGoodEnough) {
  Prompts prompts(SpecOf(Sampler::kLevels), RowsWithLevels(30, 3));
  std::vector<int64_t> levels;
  // The mean of the last two groups is 0.25, 0.5, 0.75 after steps 1, 2 and 3.
  const double means[] = {0, 0.5, 0.5, 1, 0, 0, 1, 1, 1, 1};
  for (int64_t k = 0; k < 10; ++k) {
    const RowRef row = *prompts.Next(k);
    levels.push_back(LevelOf(row, 3));
    Train(&prompts, k, row, means[k]);
  }
  levels.push_back(LevelOf(*prompts.Next(10), 3));
  EXPECT_THAT(levels, ElementsAre(1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3));
  EXPECT_THAT(prompts.TakeNews(),
              ElementsAre("source digits draws level 2 now: the mean reward of the last 8 answers "
                          "of level 1 was 0.750, up to step 3",
                          HasSubstr("source digits draws level 3 now")));
  EXPECT_THAT(prompts.DescribeSampler(),
              ElementsAre("digits: level 3, from step 8 on; mean reward 1.000 of its last 8 "
                          "answers; it is the last level"));
}

TEST(LevelSamplerTest, EachPassOverALevelIsAShuffleOfItsRows) {
  Prompts prompts(SpecOf(Sampler::kLevels), RowsWithLevels(20, 2));
  std::vector<uint64_t> passes[2];
  for (std::vector<uint64_t>& pass : passes) {
    for (int i = 0; i < 10; ++i) pass.push_back(prompts.Next(0)->index);
    EXPECT_EQ(std::set<uint64_t>(pass.begin(), pass.end()).size(), 10u);
  }
  EXPECT_NE(passes[0], passes[1]);
  EXPECT_FALSE(prompts.exhausted()) << "passes over a level have no end";
}

TEST(LevelSamplerTest, FromALevelWhoseRowsAreAllInQuarantineItGoesOnToLaterLevels) {
  Prompts prompts(SpecOf(Sampler::kLevels), RowsWithLevels(6, 3));
  prompts.Quarantine({.index = 0});
  prompts.Quarantine({.index = 3});
  for (int64_t k = 0; k < 2; ++k) {
    const RowRef row = *prompts.Next(k);
    EXPECT_EQ(LevelOf(row, 3), 2);
    Train(&prompts, k, row, 1);
  }
  EXPECT_EQ(LevelOf(*prompts.Next(2), 3), 3) << "the results of level 2 count";
  EXPECT_THAT(prompts.TakeNews(),
              ElementsAre(HasSubstr("no rows of the level before are left to draw; source digits: "
                                    "level 2, from step 0 on"),
                          HasSubstr("source digits draws level 3 now")));
}

TEST(LevelSamplerTest, QuarantinedRowsAreLeftOutAndALevelWithoutRowsIsSkipped) {
  Prompts prompts(SpecOf(Sampler::kLevels), RowsWithLevels(6, 3));
  prompts.Quarantine({.index = 0});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(prompts.Next(0)->index, 3u);
  prompts.Quarantine({.index = 3});
  EXPECT_EQ(LevelOf(*prompts.Next(0), 3), 2);

  for (const uint64_t row : {1, 2, 4, 5}) prompts.Quarantine({.index = row});
  EXPECT_FALSE(prompts.Next(0).has_value());
}

// The level as a reader of the sheet would compute it: from all results so far, one by one.
class SlowLevels {
 public:
  void Learn(int64_t level, double sum, uint32_t answers) {
    if (level != level_) return;
    for (uint32_t i = 0; i < answers; ++i) rewards_.push_back(sum / answers);
    groups_.push_back(answers);
    // Whole groups leave, as long as the window stays full.
    while (rewards_.size() - groups_.front() >= 8) {
      rewards_.erase(rewards_.begin(), rewards_.begin() + groups_.front());
      groups_.pop_front();
    }
    double mean = 0;
    for (const double reward : rewards_) mean += reward / static_cast<double>(rewards_.size());
    if (rewards_.size() < 8 || mean < 0.7 - 1e-12 || level_ == 4) return;
    ++level_;
    rewards_.clear();
    groups_.clear();
  }
  int64_t level() const { return level_; }

 private:
  int64_t level_ = 1;
  std::vector<double> rewards_;
  std::deque<uint32_t> groups_;
};

TEST(LevelSamplerTest, TheLevelIsThatOfASlowModelForAnyResults) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SplitMix64 random(Mix64(seed));
    Spec spec = SpecOf(Sampler::kLevels);
    spec.max_staleness = static_cast<uint32_t>(random.Below(3));
    Prompts prompts(spec, RowsWithLevels(40, 4));
    SlowLevels slow;
    std::vector<GroupResult> results;
    for (int64_t k = 0; k < 60; ++k) {
      // The results below k - max_staleness count.
      for (const GroupResult& result : results) {
        if (result.step == k - 1 - spec.max_staleness)
          slow.Learn(LevelOf(result.row, 4), result.sum, result.answers);
      }
      const RowRef row = *prompts.Next(k);
      ASSERT_EQ(LevelOf(row, 4), slow.level()) << "seed " << seed << ", step " << k;

      const auto answers = static_cast<uint32_t>(1 + random.Below(8));
      results.push_back({.step = k,
                         .row = row,
                         .sum = std::min<double>(answers, answers * random.Uniform() * 1.6),
                         .answers = answers});
      prompts.NoteTrained(results.back());
      prompts.NoteStep(k);
    }
  }
}

TEST(RowSamplerTest, ADrawGoesByResultsThatAreTrainedHoweverFastTheTrainerIs) {
  Spec spec = SpecOf(Sampler::kLevels);
  spec.max_staleness = 2;
  spec.level_window = 4;
  Prompts prompts(spec, RowsWithLevels(20, 2));
  const RowRef row = *prompts.Next(0);
  Train(&prompts, 3, row, 1);
  EXPECT_EQ(LevelOf(*prompts.Next(4), 2), 1);
  EXPECT_EQ(LevelOf(*prompts.Next(5), 2), 1) << "step 5 may begin before step 3 is trained";
  EXPECT_EQ(LevelOf(*prompts.Next(6), 2), 2);
}

TEST(RowSamplerTest, AStepThatIsTrainedAgainCountsOnce) {
  Prompts prompts(SpecOf(Sampler::kLevels), RowsWithLevels(20, 2));
  const RowRef row = *prompts.Next(0);
  Train(&prompts, 0, row, 1);
  Train(&prompts, 0, row, 1);
  EXPECT_EQ(LevelOf(*prompts.Next(1), 2), 1) << "4 of the 8 answers that are needed";
  Train(&prompts, 1, row, 1);
  EXPECT_EQ(LevelOf(*prompts.Next(2), 2), 2);
}

TEST(AdaptiveSamplerTest, RowsThatAreNeitherSolvedNorHopelessComeMostOften) {
  Prompts prompts(SpecOf(Sampler::kAdaptive), RowsWithLevels(4, 1));
  // p is 0.95, 0.05, 0.5 and, of the row without results, 0.5.
  for (int64_t k = 0; k < 12; ++k) {
    prompts.NoteTrained({.step = k, .row = {.index = 0}, .sum = 4, .answers = 4});
    prompts.NoteTrained({.step = k, .row = {.index = 1}, .sum = 0, .answers = 4});
    prompts.NoteTrained({.step = k, .row = {.index = 2}, .sum = 2, .answers = 4});
    prompts.NoteStep(k);
  }
  std::vector<double> share(4);
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) share[prompts.Next(100)->index] += 1.0 / kDraws;

  // Earned and missed come to 8 answers, as each visit halves the earlier ones: p = 9/10.
  const double extreme = 0.9 * 0.1, middle = 0.25, all = 2 * extreme + 2 * middle;
  EXPECT_NEAR(share[0], 0.9 * extreme / all + 0.025, 0.01);
  EXPECT_NEAR(share[1], 0.9 * extreme / all + 0.025, 0.01);
  EXPECT_NEAR(share[2], 0.9 * middle / all + 0.025, 0.015);
  EXPECT_NEAR(share[3], 0.9 * middle / all + 0.025, 0.015);
}

TEST(AdaptiveSamplerTest, NoRowStarvesAndQuarantinedOnesDo) {
  constexpr uint64_t kRows = 50;
  Prompts prompts(SpecOf(Sampler::kAdaptive), RowsWithLevels(kRows, 1));
  for (uint64_t row = 0; row < kRows; ++row) {
    for (int64_t k = 0; k < 20; ++k)
      prompts.NoteTrained({.step = k, .row = {.index = row}, .sum = 64, .answers = 64});
  }
  prompts.Quarantine({.index = 7});
  std::set<uint64_t> drawn;
  for (uint64_t i = 0; i < 10 * kRows; ++i) drawn.insert(prompts.Next(100)->index);
  EXPECT_EQ(drawn.size(), kRows - 1) << "every tenth draw is the next row of a shuffle";
  EXPECT_FALSE(drawn.contains(7));

  for (uint64_t row = 0; row + 1 < kRows; ++row) prompts.Quarantine({.index = row});
  EXPECT_EQ(prompts.Next(100)->index, kRows - 1);
}

TEST(AdaptiveSamplerTest, RewardsOutsideOfZeroToOneCountAsTheseAndWhatWasLearnedFades) {
  Prompts prompts(SpecOf(Sampler::kAdaptive), RowsWithLevels(2, 1));
  Train(&prompts, 0, {.index = 0}, 7.5);
  Train(&prompts, 1, {.index = 1}, -3);
  prompts.Next(5);
  EXPECT_THAT(prompts.DescribeSampler(),
              ElementsAre(HasSubstr("2 of 2 rows were answered, of which 1 earn at least "
                                    "0.8 now, 1 at most 0.2, and 0 lie between")));
  for (int64_t k = 5; k < 9; ++k) Train(&prompts, k, {.index = 0}, 0);
  prompts.Next(20);
  EXPECT_THAT(prompts.DescribeSampler()[0], HasSubstr("0 earn at least 0.8 now, 2 at most 0.2"));
}

// What a checkpoint keeps.
Prompts::Progress ThroughACursor(const Prompts& prompts) {
  const Cursor cursor{
      .job = "j", .ledger = {.hash = std::string(32, 'h')}, .prompts = prompts.progress()};
  return DecodeCursor(EncodeCursor(cursor))->prompts;
}

// A visit of the row by one group, all of whose answers earned this much.
void Visit(Prompts* prompts, int64_t step, uint64_t row, double reward) {
  prompts->NoteRejected({.step = step,
                         .row = {.index = row},
                         .sum = 4 * reward,
                         .answers = 4,
                         .perfect = reward >= 1});
}

Spec RestSpec(Sampler sampler) {
  Spec spec = SpecOf(sampler);
  spec.rest_after = 3;
  spec.rest_steps = 20;
  return spec;
}

std::set<uint64_t> DrawnFor(Prompts* prompts, int64_t step, int draws) {
  std::set<uint64_t> drawn;
  for (int i = 0; i < draws; ++i) drawn.insert(prompts->Next(step)->index);
  return drawn;
}

TEST(RowRestTest, ARowRestsAfterThreePerfectVisitsInARowAndIsDrawnAgainAfterTwentySteps) {
  for (const Sampler sampler : {Sampler::kLevels, Sampler::kAdaptive}) {
    Prompts prompts(RestSpec(sampler), RowsWithLevels(6, 1));
    for (const int64_t step : {1, 2}) Visit(&prompts, step, 4, 1);
    EXPECT_TRUE(DrawnFor(&prompts, 3, 200).contains(4));
    Visit(&prompts, 5, 4, 0.9);  // Begins anew.
    for (const int64_t step : {6, 7}) Visit(&prompts, step, 4, 1);
    EXPECT_TRUE(DrawnFor(&prompts, 8, 200).contains(4));
    Visit(&prompts, 9, 4, 1);

    EXPECT_EQ(DrawnFor(&prompts, 10, 200), (std::set<uint64_t>{0, 1, 2, 3, 5}));
    EXPECT_EQ(DrawnFor(&prompts, 29, 200), (std::set<uint64_t>{0, 1, 2, 3, 5}));
    EXPECT_TRUE(DrawnFor(&prompts, 30, 200).contains(4));
    EXPECT_THAT(prompts.DescribeSampler()[0], HasSubstr("; 1 rest"));
  }
}

TEST(RowRestTest, IfAllRowsRestOrAreQuarantinedThoseThatRestAreDrawn) {
  for (const Sampler sampler : {Sampler::kLevels, Sampler::kAdaptive}) {
    Prompts prompts(RestSpec(sampler), RowsWithLevels(4, 1));
    prompts.Quarantine({.index = 0});
    for (const uint64_t row : {1, 2, 3}) {
      for (int64_t step = 0; step < 3; ++step) Visit(&prompts, step, row, 1);
    }
    EXPECT_EQ(DrawnFor(&prompts, 5, 200), (std::set<uint64_t>{1, 2, 3}));
  }
}

TEST(RowRestTest, ALevelAllOfWhoseRowsRestGivesWayToAnother) {
  Prompts prompts(RestSpec(Sampler::kLevels), RowsWithLevels(4, 2));
  for (const uint64_t row : {0, 2}) {
    Visit(&prompts, 0, row, 1);
    Visit(&prompts, 0, row, 1);
    Visit(&prompts, 0, row, 1);
  }
  // Level 2 is reached; its rows are 1 and 3. They are answered perfectly too.
  for (const uint64_t row : {1, 3}) {
    for (int i = 0; i < 3; ++i) Visit(&prompts, 10, row, 1);
  }
  EXPECT_EQ(DrawnFor(&prompts, 21, 50), (std::set<uint64_t>{0, 2})) << "until step 30";
}

// For each row its visits so far, from which everything is computed anew.
class SlowRests {
 public:
  void Visit(uint64_t row, int64_t step, bool perfect) { visits_[row].push_back({step, perfect}); }
  bool Rests(uint64_t row, int64_t step) const {
    const auto it = visits_.find(row);
    if (it == visits_.end()) return false;
    int in_a_row = 0;
    bool rests = false;
    for (const auto& [at, perfect] : it->second) {
      in_a_row = perfect ? in_a_row + 1 : 0;
      if (!perfect) rests = false;
      if (in_a_row < 3) continue;
      in_a_row = 0;
      rests = step <= at + 20;
    }
    return rests;
  }

 private:
  std::map<uint64_t, std::vector<std::pair<int64_t, bool>>> visits_;
};

TEST(RowRestTest, NoRowIsDrawnThatRestsByASlowModelAndACursorChangesNothing) {
  int rested = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SplitMix64 random(Mix64(seed));
    Spec spec = RestSpec(seed % 2 == 0 ? Sampler::kAdaptive : Sampler::kLevels);
    spec.seed = seed;
    constexpr uint64_t kRows = 12;
    const auto rows = RowsWithLevels(kRows, 1);
    auto prompts = std::make_unique<Prompts>(spec, rows);
    SlowRests slow;
    for (int64_t step = 0; step < 120; ++step) {
      if (random.Below(10) == 0) {
        auto again = std::make_unique<Prompts>(spec, rows);
        again->Reset(ThroughACursor(*prompts));
        prompts = std::move(again);
      }
      const uint64_t row = prompts->Next(step)->index;
      int resting = 0;
      for (uint64_t each = 0; each < kRows; ++each) resting += slow.Rests(each, step);
      rested += resting;
      EXPECT_TRUE(resting == kRows || !slow.Rests(row, step))
          << "seed " << seed << ", step " << step << ", row " << row;
      const bool perfect = random.Below(4) > 0;
      Visit(prompts.get(), step, row, perfect ? 1 : 0.5);
      slow.Visit(row, step, perfect);
    }
  }
  EXPECT_GT(rested, 1000);
}

TEST(RowSamplerTest, FromACursorTheSameRowsAreDrawnAsWithoutARestart) {
  for (const Sampler sampler : {Sampler::kLevels, Sampler::kAdaptive}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      SplitMix64 random(Mix64(seed));
      Spec spec = SpecOf(sampler);
      spec.seed = seed;
      spec.max_staleness = static_cast<uint32_t>(random.Below(3));
      const auto rows = RowsWithLevels(30, 5);
      Prompts one(spec, rows), other(spec, rows);
      const auto run = [&](int64_t from, int64_t to, SplitMix64 rewards, Prompts* on) {
        std::vector<RowRef> drawn;
        for (int64_t k = from; k < to; ++k) {
          for (int i = 0; i < 3; ++i) {
            drawn.push_back(*on->Next(k));
            on->NoteTrained({.step = k,
                             .row = drawn.back(),
                             .sum = 4 * std::min(1.0, 1.5 * rewards.Uniform()),
                             .answers = 4});
          }
          on->NoteStep(k);
          if (rewards.Below(10) == 0) on->Quarantine({.index = rewards.Below(20)});
        }
        return drawn;
      };
      run(0, 20, SplitMix64(seed), &one);
      other.Reset(ThroughACursor(one));
      ASSERT_EQ(run(20, 60, SplitMix64(seed + 1), &one), run(20, 60, SplitMix64(seed + 1), &other))
          << "seed " << seed;
      EXPECT_EQ(one.DescribeSampler(), other.DescribeSampler());
    }
  }
}

TEST(RowSamplerTest, AProgressOfAnotherSamplerOrOfOtherRowsDoesNotFit) {
  const auto rows = RowsWithLevels(10, 2);
  Prompts uniform(SmallSpec(), rows), levels(SpecOf(Sampler::kLevels), rows),
      adaptive(SpecOf(Sampler::kAdaptive), rows);
  EXPECT_FALSE(uniform.Fits(levels.progress()));
  EXPECT_FALSE(levels.Fits(uniform.progress()));

  Prompts::Progress progress = levels.progress();
  progress.sampler.sources[0].level = 2;
  EXPECT_FALSE(levels.Fits(progress)) << "there are two levels";
  progress = adaptive.progress();
  progress.sampler.sources[0].visited[10] = {1, 1};
  EXPECT_FALSE(adaptive.Fits(progress)) << "there are ten rows";
  progress.sampler.sources[0].visited = {{9, {-1, 0}}};
  EXPECT_FALSE(adaptive.Fits(progress));
}

// A whole job. ---------------------------------------------------------------------------------

int64_t LevelOfTask(const TaskGrant& task) {
  return 1 + static_cast<int64_t>(task.row.ref.index) % 3;
}

TEST(RowSamplerTest, AJobClimbsTheLevelsAndTellsItAsNews) {
  Harness h(SpecOf(Sampler::kLevels), {60}, 1, /*levels=*/3);
  h.Start();
  std::set<int64_t> seen;
  h.reward_of = [&](const TaskGrant& task) {
    seen.insert(LevelOfTask(task));
    return LevelOfTask(task) < 3 ? 1.0 : 0.0;
  };
  for (int step = 0; step < 8; ++step) h.RunStep();
  EXPECT_EQ(seen, (std::set<int64_t>{1, 2, 3}));
  ASSERT_EQ(h.alarms.size(), 2u);
  EXPECT_EQ(h.alarms[0].code, "level_up");
  EXPECT_TRUE(h.alarms[0].is_news);
  EXPECT_THAT(h.job().Stats().sampler, ElementsAre(HasSubstr("digits: level 3, from step ")));
}

TEST(RowSamplerTest, GroupsThatTheFilterRejectsCountToo) {
  Spec spec = SpecOf(Sampler::kLevels);
  spec.filter = Filter::kSignal;
  spec.max_rejected_steps = 0;
  Harness h(spec, {60}, 1, /*levels=*/3);
  h.Start();
  // Level 1 is mastered, so all its groups are rejected; those of level 2 have a signal.
  h.reward_of = [](const TaskGrant& task) {
    return LevelOfTask(task) == 1 ? 1.0 : static_cast<double>(*task.owner.member);
  };
  for (int round = 0; round < 20 && h.job().version() == 0; ++round) {
    const auto admitted = h.Admitted(1000);
    if (admitted.ok()) h.SampleAll(h.Rollout(), *admitted, {1, 0});
    h.ScoreAll();
    const auto batch = h.Acquired(0);
    if (batch.ok() && batch->filled) {
      ASSERT_TRUE(h.ApplyBatch(*batch).ok());
    }
  }
  EXPECT_EQ(h.job().version(), 1) << "else the step would draw rows of level 1 for ever";
  EXPECT_THAT(h.job().Stats().sampler, ElementsAre(HasSubstr("digits: level 2, from step 1 on")));
}

TEST(RowSamplerTest, ARestartOfTheQueueChangesNothing) {
  for (const Sampler sampler : {Sampler::kLevels, Sampler::kAdaptive}) {
    const auto run = [&](bool restart) {
      Harness h(SpecOf(sampler), {60}, 1, /*levels=*/3);
      h.Start();
      std::vector<uint64_t> drawn;
      h.reward_of = [&](const TaskGrant& task) {
        if (*task.owner.member == 0) drawn.push_back(task.row.ref.index);
        return task.row.ref.index % 3 < 2 ? 1.0 : 0.0;
      };
      for (int step = 0; step < 12; ++step) {
        if (restart && step % 3 == 1) {
          h.RestartQueue();
          h.Load(h.Rollout(), {1, h.loaded});
        }
        h.RunStep();
      }
      return std::pair(drawn, h.job().Stats().sampler);
    };
    EXPECT_EQ(run(false), run(true));
  }
}

TEST(RowSamplerTest, AReplayCountsItsStepsOnceAndARequeueForgetsThem) {
  Harness h(SpecOf(Sampler::kLevels), {60}, 1, /*levels=*/3);
  h.Start();
  h.reward_of = [](const TaskGrant&) { return 1.0; };
  h.RunStep(/*want_cursor=*/true);
  const std::string cursor = h.cursor;
  for (int step = 0; step < 5; ++step) h.RunStep();
  const std::vector<std::string> before = h.job().Stats().sampler;
  EXPECT_THAT(before[0], HasSubstr("level 3"));

  ASSERT_EQ(RestartTrainer(h, cursor, "c1")->mode, RestoreMode::kReplay);
  for (int64_t k = h.job().version(); k < 6; ++k) {
    const auto batch = h.Acquired(k);
    ASSERT_TRUE(batch.ok()) << batch.status();
    ASSERT_TRUE(h.ApplyBatch(*batch).ok());
  }
  EXPECT_EQ(h.job().Stats().sampler, before);

  ASSERT_EQ(RestartTrainer(h, cursor, "", RestoreMode::kRequeue)->mode, RestoreMode::kRequeue);
  EXPECT_THAT(h.job().Stats().sampler[0], HasSubstr("level 1"));
}

TEST(RowSamplerTest, AQueueThatLostTheJobGoesOnFromTheCursor) {
  Harness h(SpecOf(Sampler::kAdaptive), {30}), lost(SpecOf(Sampler::kAdaptive), {30});
  h.Start();
  for (int step = 0; step < 6; ++step) h.RunStep(/*want_cursor=*/true);

  lost.SetWorkers();
  ASSERT_TRUE(RestartTrainer(lost, h.cursor, "c6").ok());
  EXPECT_EQ(lost.job().Stats().sampler, h.job().Stats().sampler);
  EXPECT_THAT(lost.job().Stats().sampler, Not(IsEmpty()));

  Harness other(SmallSpec(), {30});
  other.SetWorkers();
  const auto refused = RestartTrainer(other, h.cursor, "c6");
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("does not fit the job's data.order.sampler"));
}

}  // namespace
}  // namespace sluice::queue
