#include <cmath>
#include <functional>

#include "common/base/splitmix.h"
#include "tests/services/queue/core/harness.h"

// Twenty cases in which other queues failed. Each test has the number of its case. Cases that need
// a log, shared memory or processes are tested elsewhere too:
//
//   case  what                                     where
//   1     the trainer dies around Apply, Durable   here; with real processes in tests/integration
//   2     the queue dies; torn log; disk           here: between calls; tests/common/wal,
//                                                  store_test.cc, tests/fault
//   3-15  two trainers .. quota                    here
//   16    a reader that stops while it leases      here
//   17    a shared-memory client dies              tests/services/queue, tests/common/shm
//   18-20 clock jumps .. all producers dead        here
namespace sluice::queue {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

// Samples and scores groups, and acquires the batch of the next step.
AcquireBatchAnswer AcquireNextBatch(Harness& h) {
  auto admitted = h.Admitted(1000);
  if (admitted.ok()) h.SampleAll(h.Rollout(), *admitted, {h.trainer_incarnation, h.loaded});
  h.ScoreAll();
  const auto batch = h.Acquired(h.job().version());
  EXPECT_TRUE(batch.ok() && batch->filled) << batch.status();
  return *batch;
}

// The same as RestartTrainer, which must succeed.
RestoreAnswer ReplaceTrainer(Harness& h, const std::string& cursor, const std::string& checkpoint,
                             RestoreMode mode = RestoreMode::kReplay) {
  const auto restored = RestartTrainer(h, cursor, checkpoint, mode);
  EXPECT_TRUE(restored.ok()) << restored.status();
  return *restored;
}

std::vector<GroupId> Groups(const AcquireBatchAnswer& batch) {
  std::vector<GroupId> groups;
  for (const BatchGroup& group : batch.groups) groups.push_back(group.group);
  return groups;
}

TEST(Case01, ATrainerThatDiesBeforeApplyGetsTheSameBatchAgain) {
  Harness h;
  h.Start();
  const AcquireBatchAnswer before = AcquireNextBatch(h);
  EXPECT_EQ(ReplaceTrainer(h, "", "").version, 0);

  const auto again = h.Acquired(0);
  EXPECT_EQ(again->crc32c, before.crc32c);
  EXPECT_NE(again->lease.id, before.lease.id);
  EXPECT_TRUE(h.ApplyBatch(*again).ok());
}

TEST(Case01, ATrainerThatDiesBeforeItsCheckpointTrainsTheSameBatchAgain) {
  Harness h;
  h.Start();
  const AcquireBatchAnswer before = AcquireNextBatch(h);
  const std::string hash = h.ApplyBatch(before)->ledger.hash;

  const RestoreAnswer restored = ReplaceTrainer(h, "", "");
  EXPECT_EQ(restored.end, 1);
  EXPECT_EQ(restored.ledger.applied, 0) << "what was applied is live again";

  const auto again = h.ApplyBatch(*h.Acquired(0));
  EXPECT_EQ(again->ledger.hash, hash);
  EXPECT_EQ(again->ledger.applied, 4);
}

TEST(Case01, ACheckpointThatWasNotReportedIsDurableOnceItIsRestored) {
  Harness h;
  h.Start();
  const auto applied = h.ApplyBatch(AcquireNextBatch(h), /*want_cursor=*/true);

  const RestoreAnswer restored = ReplaceTrainer(h, applied->cursor, "c1");
  EXPECT_EQ(restored.version, 1);
  EXPECT_EQ(restored.ledger.durable, 4) << "the checkpoint holds it";
  EXPECT_EQ(restored.ledger.durable_version, 1);
}

TEST(Case01, ADurableWhoseAnswerWasLostCountsOnce) {
  Harness h;
  h.Start();
  const auto applied = h.ApplyBatch(AcquireNextBatch(h), /*want_cursor=*/true);

  const Durable durable{1, "c1", applied->ledger.hash};
  EXPECT_FALSE(h.Call<DurableAnswer>(h.Trainer(), durable)->repeat);
  EXPECT_TRUE(h.Call<DurableAnswer>(h.Trainer(), durable)->repeat);
  EXPECT_EQ(ReplaceTrainer(h, applied->cursor, "c1").ledger.durable, 4);
}

// Trains three steps and returns the rows of their batches. With `queue_dies` the queue restarts
// between the calls, except between those that sample one member.
std::vector<std::vector<uint64_t>> TrainThreeSteps(bool queue_dies) {
  Spec spec = SmallSpec();
  spec.durability = Durability::kFull;
  Harness h(spec);
  h.Start();

  const auto die = [&] {
    if (!queue_dies) return;
    h.RestartQueue();
    h.Load(h.Rollout(), {1, h.loaded});
  };

  std::vector<std::vector<uint64_t>> rows;
  for (int64_t step = 0; step < 3; ++step) {
    const auto admitted = h.Admitted(8);
    die();
    for (const queue::Grant& grant : admitted->grants) {
      for (const Member& member : grant.members) {
        h.Sample(h.Rollout(), grant, member, {{{1, step}, 3, 0}});
        die();
      }
    }

    const auto leased = h.Call<LeaseTasksAnswer>(
        h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 100}}});
    for (const TaskGrant& task : leased->tasks) {
      die();
      EXPECT_TRUE(h.PutReward(task, *task.owner.member).ok());
    }
    die();

    const auto batch = h.Acquired(step);
    die();
    const auto applied = h.ApplyBatch(*batch, /*want_cursor=*/true);
    die();
    h.Publish();
    die();
    EXPECT_TRUE(
        h.Call<DurableAnswer>(h.Trainer(), Durable{step + 1, "c", applied->ledger.hash}).ok());
    die();

    rows.emplace_back();
    for (const BatchGroup& group : batch->groups) rows.back().push_back(group.row.ref.index);
  }

  EXPECT_EQ(h.job().ledger().durable, 12);
  EXPECT_EQ(h.job().ledger().dropped_total(), 0);
  return rows;
}

TEST(Case02, AQueueThatDiesBetweenCallsTrainsTheSameRowsOnce) {
  EXPECT_EQ(TrainThreeSteps(true), TrainThreeSteps(false));
}

TEST(Case03, OfTwoTrainersTheOldOneIsFencedWhereverItGoesOn) {
  Harness h;
  h.Start();
  const AcquireBatchAnswer batch = AcquireNextBatch(h);
  const Caller old = h.Trainer();
  h.now += absl::Seconds(30);  // It stands still, and the controller gives it up.
  ReplaceTrainer(h, "", "");

  const Ledger before = h.job().ledger();
  EXPECT_EQ(
      ReasonOf(h.Call<ApplyAnswer>(
                    old, queue::Apply{.k = 0, .lease = batch.lease.id, .crc32c = batch.crc32c})
                   .status()),
      "FENCED");
  EXPECT_EQ(ReasonOf(h.Call<AdvanceVersionAnswer>(
                          old, AdvanceVersion{.expected = PolicyVersion{1, 0}, .next = {1, 1}})
                         .status()),
            "FENCED");
  EXPECT_EQ(ReasonOf(h.Call<DurableAnswer>(old, Durable{1, "c", ""}).status()), "FENCED");
  EXPECT_EQ(h.job().ledger().hash, before.hash);
  EXPECT_EQ(h.job().version(), 0);
}

TEST(Case04, TokensOfNewerVersionsThanARestoredCheckpointAreNeverTrained) {
  Harness h;
  h.Start();
  h.RunStep(/*want_cursor=*/true);
  const std::string cursor = h.cursor;
  h.RunStep();
  h.RunStep();  // The engines hold version 3.
  const auto admitted = h.Admitted(4);
  ASSERT_TRUE(admitted.ok());

  // The trainer goes back to version 1. Versions 2 and 3 are then off the branch, and what was
  // accepted under them is dropped.
  ReplaceTrainer(h, cursor, "c1", RestoreMode::kRequeue);
  const int64_t before = h.job().ledger().dropped.at("off_branch");

  // The engine finishes what it began, under version 3.
  const queue::Grant& grant = admitted->grants[0];
  const Member& first = grant.members[0];
  const TrajectoryRef ref = RefOf(grant, first);
  ASSERT_TRUE(h.PutOne(h.Rollout(), PieceRecord({.group = grant.group}, first.lease.id,
                                                SegmentRole::kPrompt, 0, 4))
                  .ok());
  ASSERT_TRUE(h.PutOne(h.Rollout(), PieceRecord(ref, first.lease.id, SegmentRole::kSampled, 4, 3,
                                                {{{1, 3}, 3, 0}}))
                  .ok());
  ASSERT_TRUE(
      h.PutOne(h.Rollout(),
               {.owner = ref, .lease = first.lease.id, .fields = {TextField("messages", "[]")}})
          .ok());
  EXPECT_TRUE(h.SealIt(h.Rollout(), ref, first.lease.id).status.ok());

  EXPECT_EQ(h.job().ledger().dropped.at("off_branch"), before + 2)
      << "its sibling is dropped with it, as groups are trained whole";
  EXPECT_EQ(
      ReasonOf(
          h.SealIt(h.Rollout(), RefOf(grant, grant.members[1]), grant.members[1].lease.id).status),
      "LEASE_LOST");
}

TEST(Case05, AnEngineTwoVersionsBehindIsJudgedByItsStampsAlone) {
  Harness h;
  h.Start();
  h.RunStep();
  h.RunStep();
  h.RunStep();  // Step 3 is next, and max_staleness is 1.

  // The engine has reported version 3, but it still samples with version 1.
  const auto admitted = h.Admitted(4);
  ASSERT_TRUE(admitted.ok());
  for (const queue::Grant& grant : admitted->grants) {
    for (const Member& member : grant.members) {
      const TrajectoryRef ref = RefOf(grant, member);
      if (!h.PutOne(h.Rollout(), PieceRecord({.group = grant.group}, member.lease.id,
                                             SegmentRole::kPrompt, 0, 4))
               .ok())
        continue;  // The seal of a group's first member has dropped the whole group.
      ASSERT_TRUE(h.PutOne(h.Rollout(), PieceRecord(ref, member.lease.id, SegmentRole::kSampled, 4,
                                                    3, {{{1, 1}, 3, 0}}))
                      .ok());
      ASSERT_TRUE(h.PutOne(h.Rollout(), {.owner = ref,
                                         .lease = member.lease.id,
                                         .fields = {TextField("messages", "[]")}})
                      .ok());
      h.SealIt(h.Rollout(), ref, member.lease.id);
    }
  }

  h.ScoreAll();
  EXPECT_EQ(h.job().ledger().dropped.at("stale"), 4) << "all of it is two versions old";

  const auto batch = h.Acquired(3);  // It gets the groups that were sampled one version ago.
  ASSERT_TRUE(batch->filled);
  for (const GroupId& group : Groups(*batch)) EXPECT_NE(group, admitted->grants[0].group);
}

// A prompt is drawn again once (reissues = 1).
TEST(Case06, AMemberThatNeverFinishesOnItsFirstRunAndAgainAfterResumeIsQuarantined) {
  Spec spec = SmallSpec();
  spec.lease = absl::Hours(100);  // Only the stall takes the member from its holder.
  Harness h(spec, {1});
  h.Start();
  for (uint32_t occurrence = 0; occurrence < 2; ++occurrence) {
    auto admitted = h.Admitted(2);
    ASSERT_TRUE(admitted.ok());
    EXPECT_EQ(admitted->grants[0].row.ref.occurrence, occurrence);

    h.Sample(h.Rollout(), admitted->grants[0], admitted->grants[0].members[0], {{{1, 0}, 3, 0}});

    const Member hangs = admitted->grants[0].members[1];
    ASSERT_TRUE(h.PutOne(h.Rollout(), PieceRecord(RefOf(admitted->grants[0], hangs), hangs.lease.id,
                                                  SegmentRole::kSampled, 4, 3, {{{1, 0}, 3, 0}}))
                    .ok());
    h.Advance(spec.stalled_after() + absl::Seconds(1));
    h.Load(h.Rollout(), {1, 0});

    const auto resumed = h.Admitted(1);
    ASSERT_TRUE(resumed.ok());
    EXPECT_EQ(resumed->grants[0].members[0].attempt, 2u);
    EXPECT_EQ(resumed->grants[0].members[0].prefix, 7u) << "it goes on from its prefix";

    h.Advance(spec.stalled_after() + absl::Seconds(1));
    h.Load(h.Rollout(), {1, 0});
  }

  EXPECT_EQ(h.job().ledger().dropped.at("straggler"), 4);
  EXPECT_EQ(h.job().Stats().groups.at("quarantined"), 1u);
  EXPECT_EQ(h.job().counters().stalled, 4);
}

TEST(Case07, ALateSealOfAShrunkDroppedConsumedOrFreedGroupChangesNothing) {
  Spec spec = SmallSpec();
  spec.straggler = Straggler::kShrink;
  spec.group_min = 1;
  spec.wait = absl::Seconds(10);
  Harness h(spec);
  h.Start();
  const auto admitted = h.Admitted(8);
  const auto seal = [&](size_t g, size_t m) {
    const queue::Grant& grant = admitted->grants[g];
    return h.SealIt(h.Rollout(), RefOf(grant, grant.members[m]), grant.members[m].lease.id);
  };

  // Groups 0 and 1 shrink to their first member and are trained. Group 2 is complete, and group 3
  // is dropped below.
  for (size_t g : {0, 1})
    h.Sample(h.Rollout(), admitted->grants[g], admitted->grants[g].members[0], {{{1, 0}, 3, 0}});
  for (const Member& member : admitted->grants[2].members)
    h.Sample(h.Rollout(), admitted->grants[2], member, {{{1, 0}, 3, 0}});
  h.ScoreAll();
  h.Advance(absl::Seconds(11));

  EXPECT_EQ(ReasonOf(seal(0, 1).status), "LEASE_LOST") << "shrunk";

  const DropItem drop{.ref = {.group = admitted->grants[3].group},
                      .lease = admitted->grants[3].members[0].lease.id,
                      .reason = "env_lost"};
  h.Call<ItemsAnswer>(h.Rollout(), Drop{{drop}}).IgnoreError();
  EXPECT_EQ(ReasonOf(seal(3, 0).status), "LEASE_LOST") << "dropped";

  const auto batch = h.Acquired(0);
  ASSERT_TRUE(batch->filled);
  EXPECT_TRUE(seal(0, 0).repeat) << "consumed: sealed before";
  EXPECT_EQ(ReasonOf(seal(0, 1).status), "LEASE_LOST") << "consumed without it";

  const auto applied = h.ApplyBatch(*batch);
  ASSERT_TRUE(h.Call<DurableAnswer>(h.Trainer(), Durable{1, "c", applied->ledger.hash}).ok());
  EXPECT_EQ(ReasonOf(seal(0, 0).status), "GONE") << "freed";
  EXPECT_EQ(ReasonOf(seal(0, 1).status), "LEASE_LOST");
}

TEST(Case08, APutRepeatedAfterALostAnswerIsARepeatAndWithOtherBytesAConflict) {
  Harness h;
  h.Start();
  const auto admitted = h.Admitted(2);
  const queue::Grant& grant = admitted->grants[0];
  const Member& member = grant.members[0];
  ASSERT_TRUE(h.PutOne(h.Rollout(), PieceRecord({.group = grant.group}, member.lease.id,
                                                SegmentRole::kPrompt, 0, 4))
                  .ok());
  Record record = PieceRecord(RefOf(grant, member), member.lease.id, SegmentRole::kSampled, 4, 3,
                              {{{1, 0}, 3, 0}});
  ASSERT_TRUE(h.PutOne(h.Rollout(), record).ok());

  uint32_t repeats = 0;
  EXPECT_TRUE(h.PutOne(h.Rollout(), record, nullptr, &repeats).ok());
  EXPECT_EQ(repeats, 1u);

  record.fields[0] = MakeField<int32_t>("tokens", Dtype::kI32, {1, 2, 3});
  EXPECT_EQ(ReasonOf(h.PutOne(h.Rollout(), record)), "CONFLICT");
  EXPECT_EQ(h.alarms.size(), 1u);
  EXPECT_EQ(h.job().group(0)->members[0].log.tokens(), 3u);
}

TEST(Case09, ASlowSampleZeroHoldsUpItsOwnGroupAndNoOther) {
  Harness h;
  h.Start();
  const auto admitted = h.Admitted(8);
  for (const queue::Grant& grant : admitted->grants) {
    for (const Member& member : grant.members) {
      if (&grant != &admitted->grants[0] || member.member != 0)
        h.Sample(h.Rollout(), grant, member, {{{1, 0}, 3, 0}});
    }
  }
  h.ScoreAll();

  const auto batch = h.Acquired(0);
  ASSERT_TRUE(batch->filled);
  EXPECT_EQ(Groups(*batch),
            (std::vector<GroupId>{admitted->grants[1].group, admitted->grants[2].group}));
  for (const BatchGroup& group : batch->groups)
    EXPECT_EQ(group.members.size(), 2u) << "whole groups of one prompt";
}

// A job with two sources, after 30 rounds. The members of each group of the source "letters" have
// equal rewards; with `all` those of every group have.
Harness PlayFilteredRounds(bool all) {
  Spec spec = SmallSpec();
  spec.filter = Filter::kSignal;
  spec.max_rejected_steps = 5;  // Of two groups each.
  spec.sources.push_back({.name = "letters", .path = "letters.jsonl", .weight = 1, .fields = {}});
  Harness h(spec, {100, 100});
  h.Start();
  for (int i = 0; i < 30; ++i) {
    const auto admitted = h.Call<AdmitAnswer>(
        h.Rollout(), Admit{.request = h.Request(), .room = 2, .wait = absl::ZeroDuration()});
    if (!admitted.ok() || admitted->grants.empty()) break;
    const bool bad = all || admitted->grants[0].row.source == "letters";
    h.SampleAll(h.Rollout(), *admitted, {h.trainer_incarnation, h.loaded});
    const auto leased = h.Call<LeaseTasksAnswer>(
        h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 10}}});
    for (const TaskGrant& task : leased->tasks)
      EXPECT_TRUE(h.PutReward(task, bad ? 0 : *task.owner.member).ok());

    const auto batch = h.Call<AcquireBatchAnswer>(
        h.Trainer(), AcquireBatch{.k = h.job().version(), .wait = absl::ZeroDuration()});
    if (!batch.ok() || !batch->filled) continue;
    EXPECT_TRUE(h.ApplyBatch(*batch).ok());
    h.Publish();
  }
  return h;
}

TEST(Case10, AHundredPercentRejectsForTheLimitOfStepsFailTheJobAloud) {
  Harness h = PlayFilteredRounds(/*all=*/true);
  EXPECT_EQ(ReasonOf(h.Acquired(0).status()), "NO_SIGNAL");
  EXPECT_EQ(h.job().ledger().dropped.at("filtered"), 20);
}

TEST(Case10, RejectsOfOneDataSetOnlyAreAnAlarmAndTheOthersGoOn) {
  Harness h = PlayFilteredRounds(/*all=*/false);
  EXPECT_GT(h.job().version(), 3);
  ASSERT_EQ(h.alarms.size(), 1u);
  EXPECT_EQ(h.alarms[0].code, "no_signal_source");
  EXPECT_THAT(h.alarms[0].message,
              HasSubstr("the last 10 groups of data source letters were all rejected"));
}

TEST(Case11, HeavyTailsOfSigmaOnePointEightLoseNothingAndBreakNoBound) {
  Spec spec = SmallSpec();
  spec.groups_per_step = 8;
  spec.group_size = spec.group_min = 1;
  spec.max_staleness = 2;
  spec.member_tokens = 4096;
  spec.lease = absl::Hours(1000);
  spec.wait = absl::Hours(100);
  Harness h(spec);
  h.check = false;
  h.Start();

  SplitMix64 random(11);
  struct Running {
    queue::Grant grant;
    Member member;
    uint64_t left = 0, at = 4;
  };
  std::vector<Running> running;

  for (int round = 0; round < 400; ++round) {
    // The window has 24 slots, 8 in each of 3 steps. The rollout asks for one member more than that
    // leaves, because a room of 0 would be refused.
    const auto admitted = h.Call<AdmitAnswer>(
        h.Rollout(), Admit{.request = h.Request(),
                           .room = static_cast<uint32_t>(24 - running.size() + 1),
                           .wait = absl::ZeroDuration()});
    for (const queue::Grant& grant : admitted->grants) {
      ASSERT_TRUE(
          h.PutOne(h.Rollout(), PieceRecord({.group = grant.group}, grant.members[0].lease.id,
                                            SegmentRole::kPrompt, 0, 4))
              .ok());

      // The sum of 12 uniform numbers is nearly normal, so that lengths are nearly log-normal.
      double normal = -6;
      for (int i = 0; i < 12; ++i) normal += static_cast<double>(random.Below(1000)) / 1000;
      running.push_back(
          {grant, grant.members[0],
           std::min<uint64_t>(3000, 1 + static_cast<uint64_t>(4 * std::exp(1.8 * normal)))});
    }

    // Each running member samples up to four tokens, and is sealed after its last one.
    for (size_t i = 0; i < running.size();) {
      Running& r = running[i];
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(r.left, 4));
      ASSERT_TRUE(h.PutOne(h.Rollout(), PieceRecord(RefOf(r.grant, r.member), r.member.lease.id,
                                                    SegmentRole::kSampled, r.at, count,
                                                    {{{1, h.loaded}, count, 0}}))
                      .ok());
      r.at += count;
      r.left -= count;
      if (r.left == 0) {
        ASSERT_TRUE(h.PutOne(h.Rollout(), {.owner = RefOf(r.grant, r.member),
                                           .lease = r.member.lease.id,
                                           .fields = {TextField("messages", "[]")}})
                        .ok());
        ASSERT_TRUE(h.SealIt(h.Rollout(), RefOf(r.grant, r.member), r.member.lease.id).status.ok());
        running.erase(running.begin() + static_cast<int64_t>(i));
      } else {
        ++i;
      }
    }

    h.ScoreAll();
    const auto batch = h.Call<AcquireBatchAnswer>(
        h.Trainer(), AcquireBatch{.k = h.job().version(), .wait = absl::ZeroDuration()});
    ASSERT_TRUE(batch.ok());
    if (!batch->filled) continue;
    ASSERT_TRUE(h.ApplyBatch(*batch).ok());  // Apply checks the age of every token again.
    h.Publish();
  }

  // No time passes, so nothing tells that the trainer waits, and the window becomes narrow.
  EXPECT_GT(h.job().version(), 30);
  EXPECT_EQ(h.job().ledger().dropped_total(), 0);
  EXPECT_GT(h.job().ledger().tokens_masked, 0);
  EXPECT_THAT(h.job().FindViolations(), testing::IsEmpty());
}

TEST(Case12, ABatchThatIsLeasedWhileTheVersionAdvancesCannotAge) {
  Harness h;
  h.Start();
  const AcquireBatchAnswer first = AcquireNextBatch(h);
  const AcquireBatchAnswer second = *h.Acquired(1);  // Prefetched: cut while the version is 0.
  ASSERT_TRUE(second.filled);
  ASSERT_TRUE(h.ApplyBatch(first).ok());
  h.Publish();

  const auto read = h.job().Read(h.Trainer(), false, second.lease.id,
                                 {{.owner = {second.groups[0].group, 0, 1}}});
  EXPECT_TRUE(read.ok() && read->missing.empty());
  EXPECT_EQ(h.Acquired(1)->crc32c, second.crc32c);
  EXPECT_TRUE(h.ApplyBatch(second).ok());
}

// `eta` is max_staleness.
TEST(Case12, AtEtaZeroAndAtAHugeEtaStepsGoOn) {
  for (uint32_t eta : {0u, 1000000u}) {
    Spec spec = SmallSpec();
    spec.max_staleness = eta;
    spec.quota_bytes = 1ull << 50;  // A job needs bytes for all steps of its window.
    Harness h(spec, {100000});
    h.check = eta == 0;
    h.Start();
    for (int step = 0; step < 3; ++step) {
      const auto admitted = h.Admitted(20);
      if (admitted.ok()) h.SampleAll(h.Rollout(), *admitted, {1, h.loaded});
      h.ScoreAll();
      const auto batch = h.Acquired(step, /*stream=*/eta == 0);
      ASSERT_TRUE(batch.ok() && batch->filled) << eta;
      ASSERT_TRUE(h.ApplyBatch(*batch).ok()) << eta;
      h.Publish();
    }

    EXPECT_THAT(h.job().FindViolations(), testing::IsEmpty());
  }
}

TEST(Case13, ATrajectoryAcrossFiveVersionsWithToolTurnsKeepsItsNewTokensOnly) {
  Spec spec = SmallSpec();
  spec.groups_per_step = spec.group_size = spec.group_min = 1;
  spec.max_staleness = 1;
  spec.member_tokens = 128;
  Harness h(spec);
  h.Start();
  const auto slow = h.Admitted(1);
  const queue::Grant& grant = slow->grants[0];
  const Member& member = grant.members[0];
  ASSERT_TRUE(h.PutOne(h.Rollout(), PieceRecord({.group = grant.group}, member.lease.id,
                                                SegmentRole::kPrompt, 0, 4))
                  .ok());

  uint64_t at = 4;
  uint32_t segment = 1;
  const auto turn = [&](SegmentRole role, uint32_t count, std::vector<VersionRun> runs) {
    Record record =
        PieceRecord(RefOf(grant, member), member.lease.id, role, at, count, std::move(runs));
    record.piece->segment = segment++;
    ASSERT_TRUE(h.PutOne(h.Rollout(), record).ok());
    at += count;
  };
  for (int64_t version = 0; version < 5; ++version) {
    turn(SegmentRole::kSampled, 3, {{{1, version}, 3, 0}});
    turn(SegmentRole::kObservation, 2, {});
    if (version < 4) h.RunStep();
  }

  ASSERT_EQ(h.job().version(), 4);
  ASSERT_TRUE(h.PutOne(h.Rollout(), {.owner = RefOf(grant, member),
                                     .lease = member.lease.id,
                                     .fields = {TextField("messages", "[]")}})
                  .ok());
  ASSERT_TRUE(h.SealIt(h.Rollout(), RefOf(grant, member), member.lease.id).status.ok());
  h.ScoreAll();

  const auto batch = h.Acquired(4);
  ASSERT_TRUE(batch.ok() && batch->filled);
  ASSERT_EQ(batch->groups[0].group, grant.group) << "the oldest goes first";
  EXPECT_EQ(batch->groups[0].members[0].trained, 6u) << "versions 3 and 4";
  EXPECT_EQ(batch->groups[0].members[0].masked.size(), 3u)
      << "versions 0 to 2, which the observations separate";
  EXPECT_TRUE(h.ApplyBatch(*batch).ok());
}

TEST(Case13, ASegmentWithoutTrainableTokensAndAnEmptyTrajectoryAreWholeMembers) {
  Harness h;
  h.Start();
  const auto admitted = h.Admitted(4);
  for (const queue::Grant& grant : admitted->grants) {
    ASSERT_TRUE(h.PutOne(h.Rollout(), PieceRecord({.group = grant.group}, grant.members[0].lease.id,
                                                  SegmentRole::kPrompt, 0, 4))
                    .ok());

    const Member& forced = grant.members[0];
    Record record = PieceRecord(RefOf(grant, forced), forced.lease.id, SegmentRole::kForced, 4, 3);
    record.piece->segment = 1;
    ASSERT_TRUE(h.PutOne(h.Rollout(), record).ok());

    for (const Member& member : grant.members) {  // The second has no token of its own.
      ASSERT_TRUE(h.PutOne(h.Rollout(), {.owner = RefOf(grant, member),
                                         .lease = member.lease.id,
                                         .fields = {TextField("messages", "[]")}})
                      .ok());
      ASSERT_TRUE(h.SealIt(h.Rollout(), RefOf(grant, member), member.lease.id).status.ok());
    }
  }
  h.ScoreAll();

  const auto batch = h.Acquired(0);
  ASSERT_TRUE(batch.ok() && batch->filled);
  EXPECT_EQ(batch->groups[0].members[0].trained, 0u);
  EXPECT_EQ(batch->groups[0].members[1].tokens, 4u);
  EXPECT_TRUE(h.ApplyBatch(*batch).ok());
}

TEST(Case14, RanksThatAskAtDifferentTimesGetOneListAndADeadOneIsReplacedWithIt) {
  Harness h;
  h.Start();
  SetJob ranks{.revision = 1000,  // Above those that the harness has used.
               .spec = h.spec(),
               .workers = {{"t1", WorkerRole::kTrainer, 1},
                           {"t2", WorkerRole::kTrainer, 1},
                           {"w1", WorkerRole::kReward, 1},
                           {"r1", WorkerRole::kRollout, 1},
                           {"r2", WorkerRole::kRollout, 1}}};
  ASSERT_TRUE(h.Call<SetJobAnswer>({"controller", 0}, ranks).ok());

  const AcquireBatchAnswer first = AcquireNextBatch(h);
  h.Advance(absl::Seconds(20));

  const auto late = h.Call<AcquireBatchAnswer>({"t2", 1}, AcquireBatch{.k = 0});
  EXPECT_EQ(late->lease.id, first.lease.id);
  EXPECT_EQ(Groups(*late), Groups(first));

  h.trainer_incarnation = 2;  // t2 died; the trainer group comes back with three ranks.
  ranks.revision = 1001;
  for (Worker& worker : ranks.workers) worker.incarnation += worker.role == WorkerRole::kTrainer;
  ranks.workers.push_back({"t3", WorkerRole::kTrainer, 2});
  ASSERT_TRUE(h.Call<SetJobAnswer>({"controller", 0}, ranks).ok());
  ASSERT_TRUE(h.Call<RestoreAnswer>({"t1", 2}, Restore{}).ok());

  for (const char* rank : {"t3", "t1", "t2"}) {
    const auto again = h.Call<AcquireBatchAnswer>({rank, 2}, AcquireBatch{.k = 0});
    EXPECT_EQ(Groups(*again), Groups(first)) << rank;
    EXPECT_EQ(again->crc32c, first.crc32c);
  }
}

TEST(Case15, WithTheQuotaReservedWritersNeverFailForSpace) {
  Spec spec = SmallSpec();
  spec.quota_bytes = 6 * spec.group_bytes();  // The least: max_staleness + 2 steps of two groups.
  Harness h(spec);
  h.Start();
  for (int step = 0; step < 2; ++step) h.RunStep();  // Not durable: their bytes stay.

  const auto admitted = h.Call<AdmitAnswer>(
      h.Rollout(), Admit{.request = h.Request(), .room = 100, .wait = absl::ZeroDuration()});
  ASSERT_TRUE(admitted.ok());

  // Whatever is admitted can be written.
  h.SampleAll(h.Rollout(), *admitted, {1, h.loaded});

  const auto none = h.Call<AdmitAnswer>(
      h.Rollout(), Admit{.request = h.Request(), .room = 100, .wait = absl::ZeroDuration()});
  EXPECT_TRUE(none->grants.empty());
  EXPECT_THAT(none->edge->on.kind, AnyOf(NodeKind::kBytes, NodeKind::kSlot));
}

TEST(Case15, OneTrajectoryAboveItsReservationIsToldToSealWithLength) {
  Harness h;
  h.Start();
  const auto admitted = h.Admitted(1);
  const queue::Grant& grant = admitted->grants[0];
  const Member& member = grant.members[0];
  ASSERT_TRUE(h.PutOne(h.Rollout(), PieceRecord({.group = grant.group}, member.lease.id,
                                                SegmentRole::kPrompt, 0, 4))
                  .ok());

  // A token and its log-prob take 8 bytes.
  const auto count = static_cast<uint32_t>(h.spec().member_bytes() / 8 + 1);
  EXPECT_EQ(ReasonOf(h.PutOne(h.Rollout(),
                              PieceRecord(RefOf(grant, member), member.lease.id,
                                          SegmentRole::kSampled, 4, count, {{{1, 0}, count, 0}}))),
            "OVER_RESERVATION");
}

TEST(Case15, AFieldOfNoBytesAndAHundredThousandTinyOnesAreStored) {
  Spec spec = SmallSpec();
  spec.member_tokens = 1 << 20;  // The reservation has room for all fields.
  Harness h(spec);
  h.check = false;
  h.Start();

  const auto admitted = h.Admitted(1);
  const TrajectoryRef ref = RefOf(admitted->grants[0], admitted->grants[0].members[0]);
  const Id16 lease = admitted->grants[0].members[0].lease.id;
  ASSERT_TRUE(
      h.PutOne(h.Rollout(), {.owner = ref, .lease = lease, .fields = {TextField("empty", "")}})
          .ok());

  Record many{.owner = ref, .lease = lease};
  for (int i = 0; i < 100000; ++i) many.fields.push_back(TextField(absl::StrCat("f", i), "x"));
  ASSERT_TRUE(h.PutOne(h.Rollout(), std::move(many)).ok());

  EXPECT_EQ(h.job().group(0)->members[0].fields.size(), 100001u);
  EXPECT_THAT(h.job().FindViolations(), testing::IsEmpty());
}

TEST(Case16, ALeaseOfAReaderThatStoppedRunsOutAndTheListIsOfferedAgain) {
  Harness h;
  h.Start();
  const AcquireBatchAnswer first = AcquireNextBatch(h);
  h.Advance(absl::Seconds(61));
  EXPECT_EQ(ReasonOf(h.ApplyBatch(first).status()), "LEASE_LOST");

  const auto again = h.Acquired(0);
  EXPECT_EQ(Groups(*again), Groups(first));
  EXPECT_TRUE(h.ApplyBatch(*again).ok());
}

TEST(Case18, AJumpBeyondEveryDeadlineExpiresLeasesOnceAndWorkGoesOnFromItsPrefix) {
  Harness h;
  h.Start();
  const auto admitted = h.Admitted(2);
  const queue::Grant& grant = admitted->grants[0];
  const Member& member = grant.members[0];
  ASSERT_TRUE(h.PutOne(h.Rollout(), PieceRecord({.group = grant.group}, member.lease.id,
                                                SegmentRole::kPrompt, 0, 4))
                  .ok());
  ASSERT_TRUE(h.PutOne(h.Rollout(), PieceRecord(RefOf(grant, member), member.lease.id,
                                                SegmentRole::kSampled, 4, 3, {{{1, 0}, 3, 0}}))
                  .ok());
  h.Advance(absl::Hours(240));  // The holder was stopped that long.

  EXPECT_EQ(
      ReasonOf(h.PutOne(h.Rollout(), PieceRecord(RefOf(grant, member), member.lease.id,
                                                 SegmentRole::kSampled, 7, 1, {{{1, 0}, 1, 0}}))),
      "LEASE_LOST");

  const auto renewed = h.Call<RenewAnswer>(
      h.Rollout(), Renew{.leases = {member.lease.id}, .loaded = {{0, {1, 0}, true}}});
  EXPECT_EQ(renewed->lost.size(), 1u);
  const auto again = h.Admitted(2);
  ASSERT_EQ(again->grants[0].group, grant.group);
  EXPECT_EQ(again->grants[0].members[0].prefix, 7u);

  // A clock may read the same or less than at the event before.
  h.now -= absl::Seconds(5);
  h.Sample(h.Rollout(), again->grants[0], again->grants[0].members[0], {{{1, 0}, 2, 0}});
}

TEST(Case19, ARewardForADroppedTrajectoryADifferingOneAndOneBeforeTheSealAreRefused) {
  Harness h;
  h.Start();
  const auto admitted = h.Admitted(2);
  const queue::Grant& grant = admitted->grants[0];
  h.Sample(h.Rollout(), grant, grant.members[0], {{{1, 0}, 3, 0}});
  const auto leased = h.Call<LeaseTasksAnswer>(
      h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 10}}});
  ASSERT_EQ(leased->tasks.size(), 1u) << "no task before the seal";

  TaskGrant early = leased->tasks[0];
  early.owner.member = 1;
  EXPECT_EQ(ReasonOf(h.PutReward(early, 1)), "LEASE_LOST") << "a reward before the seal";

  ASSERT_TRUE(h.PutReward(leased->tasks[0], 1).ok());
  EXPECT_EQ(ReasonOf(h.PutReward(leased->tasks[0], 0)), "CONFLICT") << "two differing rewards";
  EXPECT_EQ(h.job().group(0)->members[0].task_reward, 1);

  const auto other = h.Admitted(4);
  const queue::Grant& lost = other->grants.back();
  h.Sample(h.Rollout(), lost, lost.members[0], {{{1, 0}, 3, 0}});
  const auto task = h.Call<LeaseTasksAnswer>(
      h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 10}}});

  const DropItem drop{
      .ref = {.group = lost.group}, .lease = lost.members[1].lease.id, .reason = "env_lost"};
  ASSERT_TRUE(h.Call<ItemsAnswer>(h.Rollout(), Drop{{drop}})->items[0].status.ok());
  EXPECT_EQ(ReasonOf(h.PutReward(task->tasks[0], 1)), "LEASE_LOST") << "a reward after the drop";
}

TEST(Case20, WithAllProducersDeadTheTrainersWaitEndsWithAReason) {
  Harness h;
  h.Start();
  ASSERT_TRUE(h.Admitted(2).ok());
  const uint64_t waits = h.Send(h.Trainer(), AcquireBatch{.k = 0, .wait = absl::Seconds(30)});

  for (const char* rollout : {"r1", "r2"}) {
    EXPECT_TRUE(h.Call<ReleaseAnswer>(
                     {"controller", 0},
                     Release{.worker = rollout, .incarnation = 1, .reason = ReleaseReason::kLost})
                    .ok());
  }

  h.Advance(absl::Seconds(30));
  const auto answer = h.Result<AcquireBatchAnswer>(waits);
  ASSERT_TRUE(answer.ok());
  EXPECT_FALSE(answer->filled);
  EXPECT_THAT(answer->edge->cause, HasSubstr("nobody holds it"));
  EXPECT_THAT(answer->edge->cause, HasSubstr("0 of 2 groups are accepted"));
}

}  // namespace
}  // namespace sluice::queue
