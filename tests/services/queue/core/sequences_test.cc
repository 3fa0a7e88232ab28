#include "tests/services/queue/core/harness.h"

// The sequences of calls in the life of a job, in their order, as far as the queue takes part. The
// parts of the other daemons are tested with real processes in tests/integration and tests/fault.
namespace sluice::queue {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const Caller kController{"controller", 0};

// Rollout r1 samples everything that may be admitted, and it is scored.
void SampleAndScoreAll(Harness& h, PolicyVersion version) {
  const auto admitted = h.Call<AdmitAnswer>(
      h.Rollout(), Admit{.request = h.Request(), .room = 1000, .wait = absl::ZeroDuration()});
  if (admitted.ok()) h.SampleAll(h.Rollout(), *admitted, version);
  h.ScoreAll();
}

// Writes the prompt and `count` sampled tokens of a member, and does not seal it.
void BeginMember(Harness& h, const std::string& rollout, const queue::Grant& grant,
                 const Member& member, uint32_t count) {
  const PolicyVersion version{h.trainer_incarnation, h.loaded};
  ASSERT_TRUE(h.PutOne(h.Rollout(rollout), PieceRecord({.group = grant.group}, member.lease.id,
                                                       SegmentRole::kPrompt, 0, 4))
                  .ok());
  ASSERT_TRUE(h.PutOne(h.Rollout(rollout),
                       PieceRecord(RefOf(grant, member), member.lease.id, SegmentRole::kSampled, 4,
                                   count, {{version, count, 0}}))
                  .ok());
}

TEST(SequenceTest, AJobStartsWithARestoreAndAnEngineThatRenews) {
  Harness h;
  h.SetWorkers();
  EXPECT_EQ(ReasonOf(h.Acquired(0).status()), "RESTORE_FIRST");

  const auto restored = h.Call<RestoreAnswer>(h.Trainer(), Restore{});  // There is no checkpoint.
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ(restored->version, 0);
  EXPECT_TRUE(restored->published.empty());
  ASSERT_TRUE(h.Call<AdvanceVersionAnswer>(h.Trainer(), AdvanceVersion{.next = {1, 0}}).ok());
  EXPECT_EQ(ReasonOf(h.Admitted(1).status()), "NOT_YET")
      << "an engine renews before its first Admit";

  h.Load(h.Rollout(), {1, 0});
  EXPECT_TRUE(h.Admitted(1).ok());

  const uint64_t rewards =
      h.Send(h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 1}}});
  EXPECT_FALSE(h.Answered(rewards)) << "it parks until there is a task";
}

TEST(SequenceTest, AGroupGoesFromItsAdmitToADurableStepAndIsFreed) {
  Spec spec = SmallSpec();
  spec.groups_per_step = 1;
  spec.filter = Filter::kSignal;
  Harness h(spec);
  h.Start();
  const auto admitted = h.Admitted(2);

  const queue::Grant& grant = admitted->grants[0];
  ASSERT_EQ(grant.members.size(), 2u);
  EXPECT_EQ(h.job().Stats().bytes.at("reserved"), spec.group_bytes());

  for (const Member& member : grant.members) {
    BeginMember(h, "r1", grant, member, 3);
    // The result of a tool follows.
    Record turn =
        PieceRecord(RefOf(grant, member), member.lease.id, SegmentRole::kObservation, 7, 2);
    turn.piece->segment = 2;
    ASSERT_TRUE(h.PutOne(h.Rollout(), turn).ok());
    ASSERT_TRUE(h.PutOne(h.Rollout(), {.owner = RefOf(grant, member),
                                       .lease = member.lease.id,
                                       .fields = {TextField("messages", "[]")}})
                    .ok());
    ASSERT_TRUE(h.SealIt(h.Rollout(), RefOf(grant, member), member.lease.id).status.ok());
  }

  EXPECT_EQ(h.ScoreAll(), 2);
  EXPECT_EQ(h.job().Stats().groups.at("accepted"), 1u);

  const auto batch = h.Acquired(0);
  ASSERT_TRUE(batch.ok() && batch->filled);
  EXPECT_EQ(batch->groups[0].members[0].tokens, 9u);
  EXPECT_EQ(batch->groups[0].members[0].trained, 3u);

  const auto applied = h.ApplyBatch(*batch);
  ASSERT_TRUE(h.Call<DurableAnswer>(h.Trainer(), Durable{1, "c1", applied->ledger.hash}).ok());
  EXPECT_EQ(h.job().group(grant.group.ordinal), nullptr) << "freed";
  EXPECT_EQ(h.job().ledger().durable, 2);
  EXPECT_EQ(h.job().Stats().bytes.at("reserved"), 0u);
}

TEST(SequenceTest, AnOnPolicyStepIsHandedOutInSlicesAsItsGroupsFinish) {
  Spec spec = SmallSpec();
  spec.max_staleness = 0;
  spec.oversample = 0.5;
  Harness h(spec);
  h.Start();
  const auto admitted = h.Admitted(100);
  ASSERT_EQ(admitted->grants.size(), 3u);  // ceil(2 x 1.5)

  const uint64_t parked = h.Send(h.Rollout(), Admit{.request = h.Request(), .room = 1});
  EXPECT_FALSE(h.Answered(parked));

  uint32_t handed = 0;       // Groups handed out so far.
  for (size_t g : {2, 0}) {  // In the order in which they finish.
    for (const Member& member : admitted->grants[g].members)
      h.Sample(h.Rollout(), admitted->grants[g], member, {{{1, 0}, 3, 0}});
    h.ScoreAll();
    const auto slice = h.Acquired(0, /*stream=*/true, handed);
    ASSERT_TRUE(slice.ok() && slice->groups.size() == 1);
    EXPECT_EQ(slice->groups[0].group, admitted->grants[g].group);
    EXPECT_EQ(slice->closed, g == 0);
    ++handed;
  }

  EXPECT_EQ(h.job().ledger().dropped.at("stale"), 2) << "the group left over";
  ASSERT_EQ(h.cancel.size(), 2u) << "Watch tells its holders";

  const auto batch = h.Acquired(0, true);
  ASSERT_TRUE(h.ApplyBatch(*batch).ok());
  EXPECT_FALSE(h.Answered(parked)) << "step 0 is trained, but the engine still holds version 0";
  h.Publish();
  EXPECT_EQ(h.Result<AdmitAnswer>(parked)->grants[0].step, 1);
}

TEST(SequenceTest, AVersionIsPublishedAfterItsApplyAndThenLoaded) {
  Harness h;
  h.Start();
  SampleAndScoreAll(h, {1, 0});
  const auto early = h.Call<AdvanceVersionAnswer>(
      h.Trainer(), AdvanceVersion{.expected = PolicyVersion{1, 0}, .next = {1, 1}});
  EXPECT_FALSE(early.ok()) << "a version is published only after its Apply";

  ASSERT_TRUE(h.ApplyBatch(*h.Acquired(0)).ok());
  const AdvanceVersion advance{.expected = PolicyVersion{1, 0}, .next = {1, 1}};
  EXPECT_FALSE(h.Call<AdvanceVersionAnswer>(h.Trainer(), advance)->repeat);
  EXPECT_TRUE(h.Call<AdvanceVersionAnswer>(h.Trainer(), advance)->repeat);
  EXPECT_EQ(h.job().watch().published[0].version, (PolicyVersion{1, 1}));
  EXPECT_EQ(h.job().Stats().lowest, 0);

  h.Load(h.Rollout(), {1, 1});  // The engine says at once that it has activated the version.
  EXPECT_EQ(h.job().Stats().lowest, 1);
}

TEST(SequenceTest, WorkOfADeadRolloutGoesOnElsewhereFromItsPrefix) {
  Harness h;
  h.Start();
  h.Load(h.Rollout("r2"), {1, 0});
  const auto admitted = h.Admitted(1);
  const queue::Grant& grant = admitted->grants[0];
  BeginMember(h, "r1", grant, grant.members[0], 5);

  // The controller gives the worker up.
  ASSERT_TRUE(
      h.Call<ReleaseAnswer>(
           kController, Release{.worker = "r1", .incarnation = 1, .reason = ReleaseReason::kLost})
          .ok());
  const auto again = h.Admitted(1, "r2");
  ASSERT_EQ(again->grants[0].group, grant.group);

  const Member& heir = again->grants[0].members[0];
  EXPECT_EQ(heir.attempt, 2u);
  EXPECT_EQ(heir.prefix, 9u);

  // The next holder reads the prefix and goes on from it.
  const auto read =
      h.job().Read(h.Rollout("r2"), false, heir.lease.id, {{.owner = RefOf(grant, heir)}});
  ASSERT_TRUE(read.ok() && read->missing.empty());
  EXPECT_EQ(read->records[0].piece->runs[0].count, 5u);
  EXPECT_NE(read->records[0].fields[1].bytes.size, 0u) << "log-probs come along";

  h.Sample(h.Rollout("r2"), again->grants[0], heir, {{{1, 0}, 2, 0}});

  // The old process wakes up.
  const Record late = PieceRecord(RefOf(grant, grant.members[0]), grant.members[0].lease.id,
                                  SegmentRole::kSampled, 9, 5, {{{1, 0}, 5, 0}});
  EXPECT_EQ(ReasonOf(h.PutOne(h.Rollout(), late)), "LEASE_LOST");
  EXPECT_THAT(h.Call<RenewAnswer>(h.Rollout(), Renew{.leases = {grant.members[0].lease.id}})->lost,
              ElementsAre(grant.members[0].lease.id));

  // It starts again, with the next incarnation.
  ++h.rollouts["r1"];
  EXPECT_EQ(h.Admitted(1).status().code(), absl::StatusCode::kUnavailable) << "not listed yet";
  h.SetWorkers();
  h.Load(h.Rollout(), {1, 0});
  EXPECT_TRUE(h.Admitted(1).ok());
}

TEST(SequenceTest, ATrainerRankDiesAtStepKAndTheBatchesComeAgain) {
  Harness h;
  h.Start();
  h.RunStep(/*want_cursor=*/true);  // Checkpoint 1.
  const std::string cursor = h.cursor;
  std::vector<uint32_t> crcs;
  std::vector<std::string> hashes;
  for (int64_t k = 1; k < 3; ++k) {
    SampleAndScoreAll(h, {1, k});
    const auto batch = h.Acquired(k);
    crcs.push_back(batch->crc32c);
    hashes.push_back(h.ApplyBatch(*batch)->ledger.hash);
    h.Publish();
  }
  const Caller old = h.Trainer();

  const auto restored = RestartTrainer(h, cursor, "c1");
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ(restored->mode, RestoreMode::kReplay);
  EXPECT_EQ(restored->version, 1);
  EXPECT_EQ(restored->end, 3);
  EXPECT_EQ(restored->fork, 3);
  EXPECT_EQ(restored->ledger.durable, 4) << "the checkpoint holds them";
  EXPECT_EQ(restored->ledger.applied, 0) << "the trained members are live again";

  // The version of the checkpoint is published under the new incarnation.
  ASSERT_TRUE(
      h.Call<AdvanceVersionAnswer>(
           h.Trainer(), AdvanceVersion{.expected = restored->published[0].version, .next = {2, 1}})
          .ok());
  EXPECT_EQ(h.job().watch().end, 3) << "up to this step engines keep the weights that they hold";

  for (int64_t k = 1; k < 3; ++k) {
    const auto batch = h.Acquired(k);
    EXPECT_EQ(batch->crc32c, crcs[k - 1]);
    EXPECT_EQ(h.ApplyBatch(*batch)->ledger.hash, hashes[k - 1]);
  }

  // The old rank wakes up.
  EXPECT_EQ(ReasonOf(h.Call<ApplyAnswer>(old, queue::Apply{.k = 3}).status()), "FENCED");
  EXPECT_EQ(ReasonOf(h.Call<DurableAnswer>(old, Durable{3, "c", ""}).status()), "FENCED");
  EXPECT_EQ(ReasonOf(h.Call<AdvanceVersionAnswer>(old, AdvanceVersion{.next = {1, 4}}).status()),
            "FENCED");
}

TEST(SequenceTest, ATrainersNewestCheckpointDoesNotVerifyAndTheOneBeforeIsARequeue) {
  Harness h;
  h.Start();
  h.RunStep(/*want_cursor=*/true);
  const std::string before = h.cursor;
  h.RunStep(/*want_cursor=*/true);
  ASSERT_TRUE(h.Call<DurableAnswer>(h.Trainer(), Durable{2, "c2", h.job().ledger().hash}).ok());

  const auto restored = RestartTrainer(h, before, "c1");
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ(restored->mode, RestoreMode::kRequeue);
  EXPECT_EQ(restored->version, 1);
  EXPECT_EQ(restored->fork, 1);
  EXPECT_EQ(restored->ledger.durable, 8) << "they stay durable on the old branch";
  EXPECT_EQ(restored->ledger.gap(), 0);
}

TEST(SequenceTest, TheQueueRestartsAtLevelFullAndAllGoesOn) {
  Spec spec = SmallSpec();
  spec.durability = Durability::kFull;
  Harness h(spec);
  h.Start();

  SampleAndScoreAll(h, {1, 0});
  const auto batch = h.Acquired(0);
  ASSERT_TRUE(h.ApplyBatch(*batch).ok());
  h.Publish();

  const Admit admit{.request = h.Request(), .room = 1};
  const auto admitted = h.Call<AdmitAnswer>(h.Rollout(), admit);
  const queue::Grant& grant = admitted->grants[0];
  BeginMember(h, "r1", grant, grant.members[0], 3);
  h.RestartQueue();

  EXPECT_EQ(h.job().watch().queue_incarnation, 2u);

  h.Load(h.Rollout(), {1, 1});
  const auto again = h.Call<AdmitAnswer>(h.Rollout(), admit);
  EXPECT_TRUE(again->repeat);
  EXPECT_EQ(again->grants[0].members[0].lease.id, grant.members[0].lease.id);

  uint32_t repeats = 0;
  EXPECT_TRUE(h.PutOne(h.Rollout(),
                       PieceRecord(RefOf(grant, grant.members[0]), grant.members[0].lease.id,
                                   SegmentRole::kSampled, 4, 3, {{{1, 1}, 3, 0}}),
                       nullptr, &repeats)
                  .ok());
  EXPECT_EQ(repeats, 1u);

  // The holder goes on behind the tokens that it had stored.
  h.Sample(h.Rollout(), {.group = grant.group},
           {.member = 0, .attempt = 1, .lease = grant.members[0].lease, .prefix = 7},
           {{{1, 1}, 2, 0}});
  EXPECT_TRUE(h.ApplyBatch(*batch)->repeat);
}

TEST(SequenceTest, TheQueueRestartsAtLevelMetadataAndPayloadIsSampledAnew) {
  Spec spec = SmallSpec();
  spec.durability = Durability::kMetadata;
  Harness h(spec);
  h.Start();
  // Columns of 30 tokens are larger than kInHead, so the log at this level does not keep them.
  const auto admitted = h.Admitted(8);
  for (size_t g : {0, 1, 2}) {
    for (const Member& member : admitted->grants[g].members)
      h.Sample(h.Rollout(), admitted->grants[g], member, {{{1, 0}, 30, 0}});
  }
  h.ScoreAll();

  const auto batch = h.Acquired(0);
  ASSERT_TRUE(batch->filled);

  const queue::Grant& running = admitted->grants[3];
  BeginMember(h, "r1", running, running.members[0], 30);

  h.RestartQueue();
  EXPECT_EQ(h.job().ledger().dropped.at("lost"), 2) << "the sealed members that are in no batch";
  EXPECT_FALSE(h.job().Peek(PeekWhat::kGroups, "", h.now, /*text=*/true).empty())
      << "its tokens are lost, the rest can be shown";

  uint64_t watermark = ~0ull;
  const Record next = PieceRecord(RefOf(running, running.members[0]), running.members[0].lease.id,
                                  SegmentRole::kSampled, 34, 1, {{{1, 0}, 1, 0}});
  EXPECT_EQ(ReasonOf(h.PutOne(h.Rollout(), next, &watermark)), "NOT_YET");
  EXPECT_EQ(watermark, 0u) << "its holder has to send all of it again";

  BeginMember(h, "r1", running, running.members[0], 30);
  const BatchGroup& group = batch->groups[0];
  const auto read = h.job().Read(h.Trainer(), false, h.Acquired(0)->lease.id,
                                 {{.owner = {group.group, 0, group.members[0].attempt}}});
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->missing.size(), 1u);

  const auto restored = RestartTrainer(h, "", "");
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ(restored->mode, RestoreMode::kRequeue);
  EXPECT_EQ(restored->ledger.dropped.at("lost"), 6);
  EXPECT_EQ(restored->ledger.gap(), 0);
}

TEST(SequenceTest, TheQueueLosesTheJobAndGoesOnFromTheTrainersCursor) {
  std::string cursor;
  Ledger ledger;
  {
    Harness h;
    h.Start();
    h.RunStep(/*want_cursor=*/true);
    cursor = h.cursor;
    ledger = h.job().ledger();
  }

  Harness h(SmallSpec(), {1000}, /*queue_incarnation=*/2);
  h.SetWorkers();
  EXPECT_EQ(ReasonOf(h.Acquired(1).status()), "RESTORE_FIRST");

  const auto restored = RestartTrainer(h, cursor, "c1", RestoreMode::kRequeue);
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ(restored->version, 1);
  EXPECT_EQ(restored->fork, 1);
  EXPECT_EQ(restored->ledger.hash, ledger.hash);
  EXPECT_EQ(restored->ledger.dropped.at("lost"), ledger.live);
  ASSERT_TRUE(h.Call<AdvanceVersionAnswer>(h.Trainer(), AdvanceVersion{.next = {2, 1}}).ok());

  // Leases of the old queue are lost.
  Id16 lease;
  lease.bytes.fill(7);
  EXPECT_EQ(ReasonOf(h.PutOne(h.Rollout(), PieceRecord({{1, 2}, 0, 1}, lease, SegmentRole::kSampled,
                                                       4, 1, {{{1, 0}, 1, 0}}))),
            "LEASE_LOST");

  h.loaded = 1;
  h.Load(h.Rollout(), {2, 1});
  h.RunStep();
  EXPECT_EQ(h.job().version(), 2);
}

TEST(SequenceTest, TheControllerRestartsAndItsStoredRevisionIsARepeat) {
  Harness h;
  h.Start();
  SetJob set{.revision = 5,
             .spec = h.spec(),
             .workers = {{"t1", WorkerRole::kTrainer, 1},
                         {"w1", WorkerRole::kReward, 1},
                         {"r1", WorkerRole::kRollout, 1}}};
  ASSERT_TRUE(h.Call<SetJobAnswer>(kController, set).ok());
  const auto held = h.Admitted(1);

  EXPECT_TRUE(h.Call<SetJobAnswer>(kController, set)->repeat);

  set.revision = 4;
  EXPECT_EQ(ReasonOf(h.Call<SetJobAnswer>(kController, set).status()), "LOST_RACE");
  BeginMember(h, "r1", held->grants[0], held->grants[0].members[0], 3);  // Work went on meanwhile.
}

TEST(SequenceTest, WorkOfADrainedRolloutGoesOnElsewhereFromItsPrefix) {
  Harness h;
  h.Start();
  h.Load(h.Rollout("r2"), {1, 0});
  const auto admitted = h.Admitted(2);
  const queue::Grant& grant = admitted->grants[0];

  h.Sample(h.Rollout(), grant, grant.members[0], {{{1, 0}, 3, 0}});  // What ends in time is sealed.

  Record piece = PieceRecord(RefOf(grant, grant.members[1]), grant.members[1].lease.id,
                             SegmentRole::kSampled, 4, 6, {{{1, 0}, 6, 0}});
  ASSERT_TRUE(h.PutOne(h.Rollout(), piece).ok());
  EXPECT_EQ(h.Call<ReleaseAnswer>(h.Rollout(), Release{.leases = {grant.members[1].lease.id},
                                                       .reason = ReleaseReason::kDrain})
                ->released,
            1u);

  const auto heir = h.Admitted(1, "r2");
  EXPECT_EQ(heir->grants[0].group, grant.group);
  EXPECT_EQ(heir->grants[0].members[0].prefix, 10u);
  EXPECT_EQ(h.job().ledger().dropped_total(), 0);
}

TEST(SequenceTest, ACancelledJobHoldsItsWorkForARetryUntilItIsClosed) {
  Harness h;
  h.Start();
  h.RunStep();
  const auto held = h.Admitted(1);

  h.SetWorkers(Phase::kHold);  // Nothing more is admitted.
  const uint64_t parked =
      h.Send(h.Rollout(), Admit{.request = h.Request(), .room = 1, .wait = absl::Seconds(5)});
  h.Advance(absl::Seconds(5));
  EXPECT_TRUE(h.Result<AdmitAnswer>(parked)->grants.empty());

  SampleAndScoreAll(h, {1, 1});
  const auto batch = h.Acquired(1);
  ASSERT_TRUE(batch.ok() && batch->filled) << "the step at hand goes on";
  const auto applied = h.ApplyBatch(*batch, /*want_cursor=*/true);
  ASSERT_TRUE(h.Call<DurableAnswer>(h.Trainer(), Durable{2, "c2", applied->ledger.hash}).ok());
  const Release release{.leases = {held->grants[0].members[0].lease.id},
                        .reason = ReleaseReason::kDrain};
  EXPECT_EQ(h.Call<ReleaseAnswer>(h.Rollout(), release)->released, 1u);

  const int64_t live = h.job().ledger().live;
  EXPECT_GT(live, 0) << "work is held";

  // The user retries the job (VERB_RETRY) while its work is held.
  ASSERT_TRUE(RestartTrainer(h, applied->cursor, "c2").ok());
  EXPECT_EQ(h.job().ledger().live, live);

  h.SetWorkers(Phase::kClosed);  // The controller holds work for a limited time.
  EXPECT_EQ(h.job().ledger().live, 0);
  EXPECT_EQ(h.job().ledger().dropped.at("closed"), live);
  EXPECT_EQ(h.job().ledger().gap(), 0);
  EXPECT_EQ(ReasonOf(h.Admitted(1).status()), "CLOSED");
}

TEST(SequenceTest, AtMaxStepsTheJobEnds) {
  Spec spec = SmallSpec();
  spec.max_steps = 2;
  Harness h(spec);
  h.Start();
  h.RunStep();
  h.RunStep(/*want_cursor=*/true);

  const auto none = h.Call<AdmitAnswer>(
      h.Rollout(), Admit{.request = h.Request(), .room = 1, .wait = absl::ZeroDuration()});
  EXPECT_TRUE(none.ok() && none->grants.empty()) << "there is no slot beyond max_steps";

  const absl::Status end = h.Acquired(2).status();
  EXPECT_EQ(ReasonOf(end), "END");
  EXPECT_THAT(std::string(end.message()), HasSubstr("ends with step 1"));
}

}  // namespace
}  // namespace sluice::queue
