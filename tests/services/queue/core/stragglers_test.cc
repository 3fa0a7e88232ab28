#include <algorithm>

#include "services/queue/core/admission.h"
#include "tests/services/queue/core/harness.h"

namespace sluice::queue {
namespace {

using testing::HasSubstr;

Spec StragglerSpec(Straggler policy) {
  Spec spec = SmallSpec();  // Two groups per step and max_staleness 1: four groups at once.
  spec.straggler = policy;
  spec.wait = absl::Seconds(40);
  spec.lease = absl::Hours(10);  // No lease runs out.
  return spec;
}

// Writes, seals and scores all groups but the first.
void FinishAllButFirst(Harness& h, const AdmitAnswer& admitted) {
  for (size_t g = 1; g < admitted.grants.size(); ++g) {
    for (const Member& member : admitted.grants[g].members)
      h.Sample(h.Rollout(), admitted.grants[g], member, {{{1, h.loaded}, 3, 0}});
  }
  h.ScoreAll();
}

std::vector<uint64_t> Ordinals(const AcquireBatchAnswer& batch) {
  std::vector<uint64_t> ordinals;
  for (const BatchGroup& group : batch.groups) ordinals.push_back(group.group.ordinal);
  return ordinals;
}

// Policies. ---------------------------------------------------------------------------------------

// T is the straggler's wait of 40 s.
TEST(StragglerTest, WaitHoldsAStepForItsGroupsAndGoesOnWithoutThemAfterT) {
  Harness h(StragglerSpec(Straggler::kWait));
  h.Start();
  const auto admitted = h.Admitted(8);
  EXPECT_EQ(admitted->grants[0].overdue, absl::Seconds(40));

  FinishAllButFirst(h, *admitted);
  uint64_t waits = h.Send(h.Trainer(), AcquireBatch{.k = 0});
  h.Advance(absl::Seconds(29));
  EXPECT_FALSE(h.Answered(waits)) << "group 0 holds a slot of step 0";

  h.Advance(absl::Seconds(2));  // A call parks for 30 s.
  EXPECT_FALSE(h.Result<AcquireBatchAnswer>(waits)->filled);

  waits = h.Send(h.Trainer(), AcquireBatch{.k = 0});
  h.Advance(absl::Seconds(10));  // 41 s after its grant.
  const auto batch = h.Result<AcquireBatchAnswer>(waits);
  ASSERT_TRUE(batch.ok() && batch->filled);
  EXPECT_THAT(Ordinals(*batch), testing::ElementsAre(1, 2));
  EXPECT_EQ(h.job().group(0)->slot, 1) << "it traded slots with the group that overtook it";

  // It is trained later all the same.
  for (const Member& member : admitted->grants[0].members)
    h.Sample(h.Rollout(), admitted->grants[0], member, {{{1, 0}, 3, 0}});
  h.ScoreAll();
  ASSERT_TRUE(h.ApplyBatch(*batch).ok());
  EXPECT_THAT(Ordinals(*h.Acquired(1)), testing::ElementsAre(0, 3));
}

TEST(StragglerTest, WaitCutsAtOnceWhenItsOwnGroupsAreDone) {
  Harness h(StragglerSpec(Straggler::kWait));
  h.Start();
  const auto admitted = h.Admitted(8);
  for (size_t g : {0, 1}) {
    for (const Member& member : admitted->grants[g].members)
      h.Sample(h.Rollout(), admitted->grants[g], member, {{{1, 0}, 3, 0}});
  }

  h.ScoreAll();
  EXPECT_THAT(Ordinals(*h.Acquired(0)), testing::ElementsAre(0, 1));
}

TEST(StragglerTest, MaskLetsAnyAcceptedGroupsGoFirst) {
  Harness h(StragglerSpec(Straggler::kMask));
  h.Start();
  FinishAllButFirst(h, *h.Admitted(8));
  EXPECT_THAT(Ordinals(*h.Acquired(0)), testing::ElementsAre(1, 2));
}

TEST(StragglerTest, DropReissuesAnOverduePromptAndThenQuarantinesIt) {  // reissues = 1
  Harness h(StragglerSpec(Straggler::kDrop));
  h.Start();
  const uint64_t index = h.Admitted(2)->grants[0].row.ref.index;
  h.Advance(absl::Seconds(41));

  EXPECT_EQ(h.job().ledger().dropped.at("straggler"), 2);
  ASSERT_EQ(h.cancel.size(), 2u);
  EXPECT_EQ(h.cancel[0].reason, "straggler");

  const auto again = h.Admitted(2);
  EXPECT_EQ(again->grants[0].row.ref.index, index);
  EXPECT_EQ(again->grants[0].row.ref.occurrence, 1u);
  h.Advance(absl::Seconds(41));
  EXPECT_EQ(h.job().Stats().groups.at("quarantined"), 1u);
  EXPECT_NE(h.Admitted(2)->grants[0].row.ref.index, index);
}

TEST(StragglerTest, ShrinkAcceptsTheMinimumOnceOverdueAndDropsTheRest) {
  Spec spec = StragglerSpec(Straggler::kShrink);
  spec.group_min = 1;
  Harness h(spec);
  h.Start();
  const auto admitted = h.Admitted(2);
  const queue::Grant& grant = admitted->grants[0];
  h.Sample(h.Rollout(), grant, grant.members[0], {{{1, 0}, 3, 0}});
  h.ScoreAll();
  h.Advance(absl::Seconds(39));

  EXPECT_EQ(h.job().Stats().groups.at("accepted"), 0u);

  h.Advance(absl::Seconds(2));
  EXPECT_EQ(h.job().Stats().groups.at("accepted"), 1u);
  EXPECT_EQ(h.job().ledger().dropped.at("shrunk"), 1);
  EXPECT_EQ(h.cancel.at(0).ref.member, 1u);
  EXPECT_EQ(h.cancel.at(0).reason, "shrunk");
  EXPECT_EQ(h.job().counters().reissued, 0) << "the prompt was not at fault";
}

TEST(StragglerTest, BelowTheMinimumAnOverdueGroupShrinksAsSoonAsItIsReached) {
  Spec spec = StragglerSpec(Straggler::kShrink);
  spec.group_min = 1;
  Harness h(spec);
  h.Start();
  const auto admitted = h.Admitted(2);
  h.Advance(absl::Seconds(60));
  EXPECT_EQ(h.job().Stats().groups.at("overdue"), 1u);

  h.Sample(h.Rollout(), admitted->grants[0], admitted->grants[0].members[1], {{{1, 0}, 3, 0}});
  EXPECT_EQ(h.job().ledger().dropped.at("shrunk"), 0);
  h.ScoreAll();
  EXPECT_EQ(h.job().ledger().dropped.at("shrunk"), 1);
  EXPECT_EQ(h.job().Stats().groups.at("accepted"), 1u);
}

// Members that stand still. -----------------------------------------------------------------------

// A holder loses its member after 10 straggler's waits of 40 s.
TEST(StragglerTest, AHolderThatStoresNothingLosesItsMemberAndProgressKeepsIt) {
  Harness h(StragglerSpec(Straggler::kMask));
  h.Start();
  const auto admitted = h.Admitted(2);
  const queue::Grant& grant = admitted->grants[0];
  const auto write = [&](uint32_t m, uint64_t at) {
    const TrajectoryRef ref{grant.group, m, 1};
    return h.PutOne(h.Rollout(), PieceRecord(ref, grant.members[m].lease.id, SegmentRole::kSampled,
                                             at, 1, {{{1, 0}, 1, 0}}));
  };
  ASSERT_TRUE(h.PutOne(h.Rollout(), PieceRecord({.group = grant.group}, grant.members[0].lease.id,
                                                SegmentRole::kPrompt, 0, 4))
                  .ok());

  for (uint64_t i = 0; i < 4; ++i) {  // Member 0 writes a token each 200 s, member 1 none.
    ASSERT_TRUE(write(0, 4 + i).ok());
    h.Advance(absl::Seconds(200));
  }

  EXPECT_EQ(h.job().group(0)->members[0].attempt, 1u);
  EXPECT_EQ(h.job().group(0)->members[1].attempt, 2u);
  EXPECT_EQ(h.cancel.at(0).ref.member, 1u);
  EXPECT_EQ(ReasonOf(write(1, 4)), "LEASE_LOST");
}

// The window. -------------------------------------------------------------------------------------

// Runs the steps of one window, of a second each, with these shares of idle time and old tokens. A
// rollout lasts `duration` seconds and as many versions. The first window begins with an Applied()
// before it.
void RunWindow(AdmissionWindow& window, Instant& now, double idle, double old,
               double duration = 1) {
  for (int i = 0; i < AdmissionWindow::kWindow; ++i) {
    window.CountGenerated(1000);
    window.CountTooOld(static_cast<uint64_t>(1000 * old));
    window.CountSealed(absl::Seconds(duration), static_cast<int64_t>(duration));
    window.SetWaiting(true, now);
    now += absl::Seconds(idle);
    window.SetWaiting(false, now);
    now += absl::Seconds(1 - idle);
    window.CountStep(now);
  }
}

TEST(AdmissionWindowTest, ItStartsAtEtaAndStaysWhileTheTrainerWaits) {
  AdmissionWindow window(2, std::nullopt);
  Instant now;
  EXPECT_EQ(window.versions(), 2);
  window.CountStep(now);
  RunWindow(window, now, 0.3, 0.5);
  EXPECT_EQ(window.versions(), 2);
}

TEST(AdmissionWindowTest, ItNarrowsWhileTokensAgeAndTheTrainerIsBusyAndNotBelowZero) {
  AdmissionWindow window(1, std::nullopt);
  Instant now;
  window.CountStep(now);
  RunWindow(window, now, 0, 0.1);

  EXPECT_EQ(window.versions(), 0.75);
  EXPECT_EQ(window.whole(), 0);
  EXPECT_EQ(window.partial_slots(10), 8u) << "three quarters of a step's slots, rounded up";

  for (int i = 0; i < 10; ++i) RunWindow(window, now, 0, 0.1);
  EXPECT_EQ(window.versions(), 0);
  RunWindow(window, now, 0, 0);
  EXPECT_EQ(window.versions(), 0);
}

TEST(AdmissionWindowTest, ANarrowingThatMadeTheTrainerWaitIsTakenBackAndTriedLessOften) {
  AdmissionWindow window(2, std::nullopt);
  Instant now;
  window.CountStep(now);
  const auto narrowed_after = [&] {
    for (int windows = 1; windows < 200; ++windows) {
      RunWindow(window, now, 0, 0.1);
      if (window.versions() < 2) return windows;
    }
    return 0;
  };

  EXPECT_EQ(narrowed_after(), 1);

  RunWindow(window, now, 0.2, 0.1);
  EXPECT_EQ(window.versions(), 2);

  const int second = narrowed_after();
  RunWindow(window, now, 0.2, 0.1);
  const int third = narrowed_after();
  EXPECT_GT(second, 1);
  EXPECT_GT(third, second);
}

TEST(AdmissionWindowTest, BetweenTheBoundsNothingMovesAndAFixedWindowNeverDoes) {
  AdmissionWindow window(2, std::nullopt), fixed(2, 1);
  Instant now;
  window.CountStep(now);
  fixed.CountStep(now);
  Instant other = now;
  RunWindow(window, now, 0.03, 0.5);
  RunWindow(fixed, other, 0, 0.5);

  EXPECT_EQ(window.versions(), 2);
  EXPECT_EQ(fixed.versions(), 1);
}

TEST(AdmissionWindowTest, AnEtaThatCanKeepNeitherIsSaidOnceWithNumbers) {
  AdmissionWindow window(1, std::nullopt);
  Instant now;
  window.CountStep(now);
  RunWindow(window, now, 0.5, 0.3, 4);  // 4 s of rollout for 0.5 s of the trainer's own time.

  EXPECT_TRUE(window.infeasible());
  EXPECT_THAT(window.MakeAdvice(),
              HasSubstr("max_staleness 1 can keep neither the trainer busy (needs 7)"));
  EXPECT_THAT(window.MakeAdvice(), HasSubstr("Set queue.max_staleness to 7 or more"));

  RunWindow(window, now, 0, 0, 1);
  EXPECT_FALSE(window.infeasible());
}

TEST(AdmissionWindowTest, TheQueueAdmitsIntoAPartOfTheLastStep) {
  Spec spec = SmallSpec();
  spec.groups_per_step = 4;
  spec.max_staleness = 1;
  spec.straggler = Straggler::kMask;
  Harness h(spec);
  h.Start();
  EXPECT_EQ(h.job().Stats().admission_staleness, 1);

  // One token in twelve comes from two versions before, and is too old to be trained.
  for (int step = 0; step < 40 && h.job().Stats().admission_staleness == 1; ++step) {
    const auto admitted = h.Admitted(1000);
    if (!admitted.ok()) continue;
    for (const queue::Grant& grant : admitted->grants) {
      for (const Member& member : grant.members)
        h.Sample(h.Rollout(), grant, member,
                 {{{1, std::max<int64_t>(0, h.loaded - 2)}, 1, 0}, {{1, h.loaded}, 11, 0}});
    }

    h.ScoreAll();
    h.Advance(absl::Seconds(1));
    h.Call<RenewAnswer>(h.Rollout(), Renew{}).IgnoreError();
    const auto batch = h.Acquired(h.job().version());
    ASSERT_TRUE(batch.ok() && batch->filled);
    ASSERT_TRUE(h.ApplyBatch(*batch).ok());
    h.Publish();
  }

  EXPECT_EQ(h.job().Stats().admission_staleness, 0.75);
  EXPECT_THAT(h.job().Stats().advice, HasSubstr("too old to be trained"));

  size_t open = 0;
  for (const auto& [state, count] : h.job().Stats().groups)
    open += state == "open" || state == "accepted" ? count : 0;
  const auto admitted = h.Admitted(1000);
  if (admitted.ok()) open += admitted->grants.size();
  EXPECT_EQ(open, 4u + 3u) << "all slots of step K, three quarters of the next one's";
}

TEST(StragglerTest, APromptThatIsNeverTrainedIsSaidAloud) {
  Spec spec = StragglerSpec(Straggler::kDrop);
  spec.reissues = 10;
  Harness h(spec, {1});  // One row.
  h.Start();
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(h.Admitted(2).ok());
    h.Advance(absl::Seconds(41));
  }

  EXPECT_EQ(h.job().Stats().groups.at("starved"), 1u);
  ASSERT_EQ(h.alarms.size(), 1u);
  EXPECT_EQ(h.alarms[0].code, "starved");
  EXPECT_THAT(h.alarms[0].message, HasSubstr("digits:0 was drawn 5 times"));
}

}  // namespace
}  // namespace sluice::queue
