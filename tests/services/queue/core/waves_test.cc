#include <algorithm>

#include "tests/services/queue/core/harness.h"

// Groups in two waves: the first members are sampled and scored, and then it is decided whether
// the others are.
namespace sluice::queue {
namespace {
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// One group of four members per step, two of them in the first wave.
Spec WaveSpec() {
  Spec spec = SmallSpec();
  spec.groups_per_step = 1;
  spec.group_size = 4;
  spec.group_min = 2;
  spec.first_wave = 2;
  spec.max_staleness = 0;
  return spec;
}

std::vector<uint32_t> MembersOf(const AdmitAnswer& answer) {
  std::vector<uint32_t> members;
  for (const queue::Grant& grant : answer.grants) {
    for (const Member& member : grant.members) members.push_back(member.member);
  }
  return members;
}

// Draws, samples and scores as long as there is something to do.
void SampleUntilIdle(Harness& h, const std::string& rollout = "r1") {
  while (true) {
    const auto admitted = h.Call<AdmitAnswer>(
        h.Rollout(rollout),
        Admit{.request = h.Request(), .room = 100, .wait = absl::ZeroDuration()});
    ASSERT_TRUE(admitted.ok()) << admitted.status();
    if (admitted->grants.empty()) return;
    h.SampleAll(h.Rollout(rollout), *admitted, {h.trainer_incarnation, h.loaded});
    h.ScoreAll();
  }
}

TEST(WavesTest, WhereRewardsDifferTheOtherMembersComeOnceTheFirstOnesAreScored) {
  Harness h(WaveSpec());
  h.Start();
  const auto first = h.Admitted(100);
  ASSERT_THAT(MembersOf(*first), ElementsAre(0, 1));
  EXPECT_EQ(first->grants[0].size, 4u);
  EXPECT_EQ(h.job().ledger().accepted, 2) << "members that are not drawn are not in the ledger";
  h.SampleAll(h.Rollout(), *first, {1, 0});

  // A rollout waits for work. The last score of the first wave gives it the second one.
  const uint64_t waits = h.Send(h.Rollout(), Admit{.request = h.Request(), .room = 100});
  EXPECT_FALSE(h.Answered(waits));
  h.ScoreAll();
  const auto second = h.Result<AdmitAnswer>(waits);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(MembersOf(*second), ElementsAre(2, 3));
  EXPECT_EQ(second->grants[0].group, first->grants[0].group);
  EXPECT_EQ(second->grants[0].seed, first->grants[0].seed);
  EXPECT_EQ(second->grants[0].row.json, first->grants[0].row.json);

  h.SampleAll(h.Rollout(), *second, {1, 0});
  h.ScoreAll();
  const auto batch = h.Acquired(0);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_THAT(batch->groups[0].members, SizeIs(4));
  EXPECT_EQ(batch->groups[0].size, 4u);
  EXPECT_EQ(h.job().Stats().groups.at("second_wave"), 1u);
  EXPECT_EQ(h.job().Stats().groups.at("first_wave_only"), 0u);
  EXPECT_EQ(h.job().Stats().answers_saved, 0);
}

TEST(WavesTest, WhereRewardsAreEqualTheGroupEndsWithItsFirstWave) {
  Harness h(WaveSpec());
  h.reward_of = [](const TaskGrant&) { return 0.5; };
  h.Start();
  SampleUntilIdle(h);

  const auto batch = h.Acquired(0);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_THAT(batch->groups[0].members, SizeIs(2));
  EXPECT_EQ(batch->groups[0].size, 2u);
  EXPECT_EQ(h.job().ledger().accepted, 2);
  EXPECT_EQ(h.job().Stats().groups.at("first_wave_only"), 1u);
  EXPECT_EQ(h.job().Stats().answers_saved, 2);
}

TEST(WavesTest, TheFilterRejectsAFirstWaveWithoutSignalAndAnotherPromptIsDrawn) {
  Spec spec = WaveSpec();
  spec.filter = Filter::kSignal;
  Harness h(spec);
  h.reward_of = [](const TaskGrant& task) {
    return task.owner.group.ordinal < 2 ? 1.0 : *task.owner.member;
  };
  h.Start();
  SampleUntilIdle(h);

  const auto batch = h.Acquired(0);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->groups[0].group.ordinal, 2u);
  EXPECT_THAT(batch->groups[0].members, SizeIs(4));
  EXPECT_EQ(h.job().counters().filtered.at("all_one"), 2);
  EXPECT_EQ(h.job().ledger().dropped.at("filtered"), 4);
  EXPECT_EQ(h.job().ledger().accepted, 8);
  EXPECT_EQ(h.job().Stats().answers_saved, 4);
}

TEST(WavesTest, TheSecondWaveGoesToTheRolloutThatHasThePromptInItsCache) {
  Spec spec = WaveSpec();
  spec.max_staleness = 1;
  Harness h(spec);
  h.Start();
  h.Load(h.Rollout("r2"), {1, 0});
  const auto first = h.Admitted(2, "r1");
  const auto other = h.Admitted(2, "r2");
  h.SampleAll(h.Rollout("r1"), *first, {1, 0});
  h.SampleAll(h.Rollout("r2"), *other, {1, 0});
  h.ScoreAll();

  // Both second waves wait. Each rollout gets that of the prompt that it knows.
  EXPECT_EQ(h.Admitted(2, "r2")->grants[0].group, other->grants[0].group);
  EXPECT_EQ(h.Admitted(2, "r1")->grants[0].group, first->grants[0].group);
}

TEST(WavesTest, TooFewScoresOfTheFirstWaveDecideNothingSoTheRestIsDrawn) {
  Harness h(WaveSpec());
  h.Start();
  const auto first = h.Admitted(100);
  h.SampleAll(h.Rollout(), *first, {1, 0});
  const auto leased = h.Call<LeaseTasksAnswer>(
      h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 10}}});
  ASSERT_TRUE(h.PutReward(leased->tasks[0], 0, "timeout").ok());
  ASSERT_TRUE(h.PutReward(leased->tasks[1], 1).ok());

  const auto second = h.Admitted(100);
  EXPECT_THAT(MembersOf(*second), ElementsAre(2, 3));
  h.SampleAll(h.Rollout(), *second, {1, 0});
  h.ScoreAll();
  EXPECT_THAT(h.Acquired(0)->groups[0].members, SizeIs(3));
  EXPECT_EQ(h.job().ledger().dropped.at("unscorable"), 1);
}

TEST(WavesTest, ARowThatIsAtFaultGetsNoSecondWave) {
  Harness h(WaveSpec());
  h.Start();
  const auto first = h.Admitted(100);
  h.SampleAll(h.Rollout(), *first, {1, 0});
  const auto leased = h.Call<LeaseTasksAnswer>(
      h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 10}}});
  ASSERT_TRUE(h.PutReward(leased->tasks[0], 0, "bad_row").ok());
  EXPECT_EQ(h.job().group(first->grants[0].group.ordinal), nullptr);
  EXPECT_EQ(h.job().Stats().groups.at("quarantined"), 1u);
}

TEST(WavesTest, TheStragglerTimeBeginsAnewWithTheSecondWave) {
  Spec spec = WaveSpec();
  spec.straggler = Straggler::kDrop;
  spec.wait = absl::Seconds(40);
  Harness h(spec);
  h.Start();
  const auto first = h.Admitted(100);
  h.Advance(absl::Seconds(30));
  h.SampleAll(h.Rollout(), *first, {1, 0});
  h.ScoreAll();
  const auto second = h.Admitted(100);
  EXPECT_EQ(second->grants[0].overdue, absl::Seconds(40));

  const uint64_t group = first->grants[0].group.ordinal;
  h.Advance(absl::Seconds(39));
  EXPECT_NE(h.job().group(group), nullptr);
  h.Advance(absl::Seconds(2));
  EXPECT_EQ(h.job().group(group), nullptr);
  EXPECT_EQ(h.job().ledger().dropped.at("straggler"), 4);
}

TEST(WavesTest, UnderThePolicyShrinkALateGroupTakesWhatItHas) {
  Spec spec = WaveSpec();
  spec.straggler = Straggler::kShrink;
  spec.wait = absl::Seconds(40);
  Harness h(spec);
  h.Start();
  h.SampleAll(h.Rollout(), *h.Admitted(100), {1, 0});
  h.Advance(absl::Seconds(41));
  h.ScoreAll();
  EXPECT_THAT(h.Acquired(0)->groups[0].members, SizeIs(2)) << "although its rewards differ";
  EXPECT_EQ(h.job().Stats().answers_saved, 2);
}

TEST(WavesTest, PromptsFromOutsideComeWithAllMembersAtOnce) {
  Harness h(WaveSpec());
  h.Start();
  Admit admit{.request = h.Request(), .room = 100};
  admit.own = Row{.ref = {.source = RowRef::kOutside}, .source = "api", .json = "{}"};
  EXPECT_THAT(MembersOf(*h.Call<AdmitAnswer>(h.Rollout(), admit)), SizeIs(4));
}

TEST(WavesTest, AGroupThatIsScoredAgainKeepsItsWaves) {
  Spec spec = WaveSpec();
  Harness h(spec);
  h.reward_of = [](const TaskGrant&) { return 1.0; };
  h.Start();
  SampleUntilIdle(h);
  ASSERT_TRUE(h.Call<RetaskAnswer>({"controller", 0}, Retask{}).ok());

  h.reward_of = [](const TaskGrant& task) { return *task.owner.member; };
  h.ScoreAll();
  SampleUntilIdle(h);
  EXPECT_THAT(h.Acquired(0)->groups[0].members, SizeIs(2));
  EXPECT_EQ(h.job().Stats().answers_saved, 2) << "counted once";
}

TEST(WavesTest, ARestartOfTheQueueBeforeTheFirstWaveIsScoredChangesNoFate) {
  for (const Durability durability : {Durability::kFull, Durability::kMetadata}) {
    Spec spec = WaveSpec();
    spec.durability = durability;
    Harness h(spec);
    h.Start();
    h.SampleAll(h.Rollout(), *h.Admitted(100), {1, 0});
    h.RestartQueue();
    h.Load(h.Rollout(), {1, 0});
    h.ScoreAll();
    SampleUntilIdle(h);

    // At level metadata the answers of the first wave are lost, and their prompt is drawn again.
    const auto batch = h.Acquired(0);
    ASSERT_TRUE(batch.ok()) << batch.status();
    const bool full = durability == Durability::kFull;
    EXPECT_EQ(batch->groups[0].row.ref.occurrence, full ? 0u : 1u);
    EXPECT_THAT(batch->groups[0].members, SizeIs(4));
    EXPECT_EQ(h.job().ledger().accepted, full ? 4 : 6);
    EXPECT_EQ(h.job().ledger().gap(), 0);
  }
}

TEST(WavesTest, SamplersLearnFromTheFirstWaveAlone) {
  // The rewards of an open group are 0 1 1 1. Its second wave is drawn because of the first one,
  // and would count too much.
  Group group;
  group.members.resize(4);
  for (size_t m = 0; m < 4; ++m) {
    group.members[m].state = MemberState::kSealed;
    group.members[m].task_reward = m > 0;
  }
  const GroupResult result = ResultOf(group, 7, WaveSpec());
  EXPECT_EQ(result.answers, 2u);
  EXPECT_EQ(result.sum, 1);
}

TEST(WavesTest, ASpecWhoseWavesCannotBeIsRefused) {
  const auto refusal = [](auto change) {
    Spec spec = WaveSpec();
    change(spec);
    return std::string(Job::CheckSpec(spec).message());
  };
  EXPECT_EQ(refusal([](Spec&) {}), "");
  EXPECT_THAT(refusal([](Spec& spec) { spec.first_wave = 1; }), HasSubstr("first_wave is 1"));
  EXPECT_THAT(refusal([](Spec& spec) { spec.first_wave = 4; }),
              HasSubstr("below size, which is 4"));
  EXPECT_THAT(refusal([](Spec& spec) { spec.group_min = 3; }), HasSubstr("min, which is 3"));
  EXPECT_THAT(refusal([](Spec& spec) { spec.tasks.clear(); }), HasSubstr("task_reward"));
  EXPECT_THAT(refusal([](Spec& spec) { spec.tasks[0].granularity = Granularity::kGroup; }),
              HasSubstr("granularity trajectory"));
}

// A reward that depends on the prompt and the member alone, so that a slow model can tell each
// group's fate in advance.
double RewardOf(uint64_t seed, const RowRef& row, uint32_t member) {
  SplitMix64 random(Mix64(Mix64(seed + kGolden * (row.index + 1)) + kGolden * member));
  const double p = SplitMix64(seed ^ row.index).Uniform();
  return random.Uniform() < p ? 1 : 0;
}

TEST(WavesTest, InAnyOrderOfWorkAGroupHasTheMembersThatASlowModelGivesIt) {
  int64_t saved = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SplitMix64 random(Mix64(seed));
    Spec spec = WaveSpec();
    spec.seed = seed;
    spec.group_size = static_cast<uint32_t>(3 + random.Below(4));
    spec.first_wave = static_cast<uint32_t>(2 + random.Below(spec.group_size - 2));
    spec.group_min = static_cast<uint32_t>(1 + random.Below(spec.first_wave));
    spec.groups_per_step = static_cast<uint32_t>(1 + random.Below(3));
    spec.max_staleness = static_cast<uint32_t>(random.Below(3));
    spec.filter = random.Below(2) == 0 ? Filter::kSignal : Filter::kNone;
    spec.max_rejected_steps = 0;
    Harness h(spec);
    h.reward_of = [&](const TaskGrant& task) {
      return RewardOf(seed, h.job().group(task.owner.group.ordinal)->row, *task.owner.member);
    };
    h.Start();
    h.Load(h.Rollout("r2"), {1, 0});

    // Admits, answers and scores come in any order and any amounts.
    struct Held {
      std::string rollout;
      queue::Grant grant;
      Member member;
    };
    std::vector<Held> held;
    std::map<uint64_t, RowRef> rows;
    std::map<uint64_t, uint32_t> drawn;  // Members granted, by group.
    while (h.job().version() < 3) {
      const std::string rollout = random.Below(2) == 0 ? "r1" : "r2";
      const auto admitted = h.Call<AdmitAnswer>(
          h.Rollout(rollout), Admit{.request = h.Request(),
                                    .room = static_cast<uint32_t>(1 + random.Below(6)),
                                    .wait = absl::ZeroDuration()});
      for (const queue::Grant& grant : admitted->grants) {
        rows[grant.group.ordinal] = grant.row.ref;
        drawn[grant.group.ordinal] += static_cast<uint32_t>(grant.members.size());
        for (const Member& member : grant.members) held.push_back({rollout, grant, member});
      }
      for (uint64_t i = random.Below(held.size() + 1); i > 0; --i) {
        const size_t at = random.Below(held.size());
        const Held one = held[at];
        held.erase(held.begin() + static_cast<int64_t>(at));
        h.Sample(h.Rollout(one.rollout), one.grant, one.member,
                 {{{h.trainer_incarnation, h.loaded}, 3, 0}});
      }
      if (random.Below(2) == 0) h.ScoreAll();

      const auto batch = h.Call<AcquireBatchAnswer>(
          h.Trainer(), AcquireBatch{.k = h.job().version(), .wait = absl::ZeroDuration()});
      if (!batch->filled) continue;
      for (const BatchGroup& group : batch->groups) {
        double first = 0;
        for (uint32_t m = 0; m < spec.first_wave; ++m) first += RewardOf(seed, group.row.ref, m);
        const bool open = first > 0 && first < spec.first_wave;
        EXPECT_EQ(group.size, open ? spec.group_size : spec.first_wave)
            << "seed " << seed << ", group " << group.group.ordinal;
        EXPECT_TRUE(open || spec.filter == Filter::kNone) << "seed " << seed;
      }
      ASSERT_TRUE(h.ApplyBatch(*batch).ok());
      h.Publish();
      h.Load(h.Rollout("r2"), {h.trainer_incarnation, h.loaded});
    }

    // No group that ended got a member more or less than the model says.
    int64_t expected_saved = 0;
    for (const auto& [ordinal, row] : rows) {
      const Group* const group = h.job().group(ordinal);
      if (group != nullptr && group->state == GroupState::kOpen) continue;
      double first = 0;
      for (uint32_t m = 0; m < spec.first_wave; ++m) first += RewardOf(seed, row, m);
      const bool open = first > 0 && first < spec.first_wave;
      // With staleness 0, a group that the step left over is dropped as stale, wherever it is.
      if (h.job().ledger().dropped.at("stale") > 0) continue;
      EXPECT_EQ(drawn[ordinal], open ? spec.group_size : spec.first_wave)
          << "seed " << seed << ", group " << ordinal;
      expected_saved += open ? 0 : spec.group_size - spec.first_wave;
    }
    if (h.job().ledger().dropped.at("stale") == 0) {
      EXPECT_EQ(h.job().Stats().answers_saved, expected_saved) << "seed " << seed;
    }
    saved += h.job().Stats().answers_saved;
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(saved, 100);
}

}  // namespace
}  // namespace sluice::queue
