#include "tests/services/queue/core/harness.h"

namespace sluice::queue {
namespace {

// What a trainer remembers of its steps: the CRC32C of each batch, and the ledger's hash after it.
struct Lineage {
  std::vector<uint32_t> crcs;
  std::vector<std::string> hashes;
};

// Trains the next step and adds it to `lineage`.
void TrainStep(Harness& h, Lineage* lineage, bool want_cursor = false) {
  const int64_t k = h.job().version();
  auto batch = h.Acquired(k);
  ASSERT_TRUE(batch.ok()) << batch.status();
  const auto applied = h.ApplyBatch(*batch, want_cursor);
  ASSERT_TRUE(applied.ok()) << applied.status();
  h.cursor = applied->cursor;
  lineage->crcs.push_back(batch->crc32c);
  lineage->hashes.push_back(applied->ledger.hash);
}

// Samples and scores everything that may be admitted.
void SampleAndScore(Harness& h) {
  auto admitted = h.Admitted(1000);
  if (admitted.ok())
    h.SampleAll(h.Rollout(), *admitted,
                {h.job().watch().published[0].version.incarnation, h.loaded});
  h.ScoreAll();
}

TEST(RestoreTest, AReplayGivesTheSameListsAndTheSameHash) {
  Harness h;
  h.Start();
  Lineage before;
  std::string cursor;
  for (int step = 0; step < 4; ++step) {
    SampleAndScore(h);
    TrainStep(h, &before, /*want_cursor=*/step == 1);
    if (step == 1) cursor = h.cursor;
    h.Publish();
  }
  SampleAndScore(h);
  ASSERT_TRUE(h.Acquired(4).ok());  // Cut, not applied.
  const Ledger at_death = h.job().ledger();
  const auto stats = h.job().Stats().staleness;

  const Caller old = h.Trainer();
  const auto restored = RestartTrainer(h, cursor, "c2");
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->mode, RestoreMode::kReplay);
  EXPECT_EQ(restored->version, 2);
  EXPECT_EQ(restored->end, 5);
  EXPECT_EQ(restored->fork, 5);
  EXPECT_EQ(restored->published[0].version, (PolicyVersion{1, 4}));
  EXPECT_EQ(restored->ledger.durable, 8);  // The checkpoint implies it.
  EXPECT_EQ(restored->ledger.hash, before.hashes[1]);

  // The old trainer group wakes up.
  EXPECT_EQ(ReasonOf(h.Call<ApplyAnswer>(old, queue::Apply{.k = 4}).status()), "FENCED");
  EXPECT_EQ(ReasonOf(h.Call<DurableAnswer>(old, Durable{4, "x", ""}).status()), "FENCED");
  EXPECT_EQ(ReasonOf(h.Call<AdvanceVersionAnswer>(old, AdvanceVersion{.next = {1, 5}}).status()),
            "FENCED");

  Lineage after;
  for (int step = 2; step < 4; ++step) TrainStep(h, &after);
  EXPECT_THAT(after.crcs, testing::ElementsAre(before.crcs[2], before.crcs[3]));
  EXPECT_THAT(after.hashes, testing::ElementsAre(before.hashes[2], before.hashes[3]));
  EXPECT_EQ(h.job().ledger().tokens_trained, at_death.tokens_trained);  // Not twice.
  EXPECT_EQ(h.job().Stats().staleness, stats);

  TrainStep(h, &after);  // The batch that was cut before the trainer died.
  EXPECT_EQ(h.job().version(), 5);
}

TEST(RestoreTest, WithoutACheckpointAllBatchesComeAgain) {
  Harness h;
  h.Start();
  Lineage before, after;
  for (int step = 0; step < 3; ++step) {
    SampleAndScore(h);
    TrainStep(h, &before);
    h.Publish();
  }

  const auto restored = RestartTrainer(h, "", "");
  EXPECT_EQ(restored->version, 0);
  EXPECT_EQ(restored->ledger.hash, std::string(32, '\0'));
  EXPECT_EQ(restored->ledger.live, h.job().ledger().live);

  for (int step = 0; step < 3; ++step) TrainStep(h, &after);
  EXPECT_EQ(after.hashes, before.hashes);
}

TEST(RestoreTest, SamplingGoesOnDuringAReplayForStepsBeyondIt) {
  Harness h;
  h.Start();
  Lineage lineage;
  for (int step = 0; step < 3; ++step) {
    SampleAndScore(h);
    TrainStep(h, &lineage);
    h.Publish();
  }
  ASSERT_TRUE(RestartTrainer(h, "", "").ok());

  // The engine still holds (1, 3), and the job is back at version 0.
  const auto admitted = h.Admitted(2);
  ASSERT_TRUE(admitted.ok());
  EXPECT_GE(admitted->grants[0].step, 3);

  h.SampleAll(h.Rollout(), *admitted, {1, 3});
}

TEST(RestoreTest, TheFirstCallsOfATrainerGroupAreRefusedUntilItRestores) {
  Harness h;
  h.Start();
  h.RunStep();
  ++h.trainer_incarnation;
  h.SetWorkers();

  EXPECT_EQ(ReasonOf(h.Acquired(1).status()), "RESTORE_FIRST");
  EXPECT_EQ(ReasonOf(h.Call<ApplyAnswer>(h.Trainer(), queue::Apply{.k = 1}).status()),
            "RESTORE_FIRST");
  EXPECT_EQ(ReasonOf(h.Call<DurableAnswer>(h.Trainer(), Durable{1, "", ""}).status()),
            "RESTORE_FIRST");
  EXPECT_EQ(
      ReasonOf(h.Call<AdvanceVersionAnswer>(h.Trainer(), AdvanceVersion{.next = {2, 1}}).status()),
      "RESTORE_FIRST");
}

TEST(RestoreTest, ARepeatAnswersTheSameAndChangesOnce) {
  Harness h;
  h.Start();
  h.RunStep();
  const auto first = RestartTrainer(h, "", "");

  const auto again = h.Call<RestoreAnswer>(h.Trainer(), Restore{});
  EXPECT_TRUE(again->repeat);
  EXPECT_EQ(again->end, first->end);
  EXPECT_EQ(h.job().ledger().applied, 0);
}

TEST(RestoreTest, RequeueGivesGroupsBackAndTokensBeyondTheForkAreOffTheBranch) {
  Harness h;
  h.Start();
  for (int step = 0; step < 3; ++step) h.RunStep();
  SampleAndScore(h);

  // The groups of steps 0 and 1 were sampled at version 0. Those of steps 2, 3 and 4 were sampled
  // at versions 1, 2 and 3, which are beyond the fork at 0.
  const auto restored = RestartTrainer(h, "", "", RestoreMode::kRequeue);
  EXPECT_EQ(restored->mode, RestoreMode::kRequeue);
  EXPECT_EQ(restored->version, 0);
  EXPECT_EQ(restored->end, 0);
  EXPECT_EQ(restored->fork, 0);
  EXPECT_EQ(h.job().ledger().applied, 0);
  EXPECT_GT(h.job().ledger().dropped.at("off_branch"), 0);
  EXPECT_EQ(h.job().Stats().groups.at("accepted"), 4u);  // Those of version 0.

  Lineage lineage;
  TrainStep(h, &lineage);
  EXPECT_EQ(h.job().version(), 1);

  // An engine that holds a version off the branch is granted nothing.
  const uint64_t call = h.Send(h.Rollout(), Admit{.request = h.Request(), .room = 1});
  EXPECT_FALSE(h.Answered(call));

  h.Load(h.Rollout(), {2, 1});
  EXPECT_TRUE(h.Answered(call));
}

TEST(RestoreTest, AnOlderCheckpointThanTheDurableOneRequeuesAndItsPromptsComeAgain) {
  Harness h;
  h.Start();
  h.RunStep(/*want_cursor=*/true);
  const std::string one = h.cursor;
  const std::string hash_one = h.job().ledger().hash;
  h.RunStep(/*want_cursor=*/true);
  std::set<uint64_t> trained;
  for (const FrozenGroup& group : h.job().batches().at(1).groups) trained.insert(group.row.index);
  ASSERT_TRUE(h.Call<DurableAnswer>(h.Trainer(), Durable{2, "c2", h.job().ledger().hash}).ok());

  const auto restored = RestartTrainer(h, one, "c1");
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->mode, RestoreMode::kRequeue);
  EXPECT_EQ(restored->version, 1);
  EXPECT_EQ(restored->ledger.hash, hash_one);
  EXPECT_EQ(restored->ledger.durable, 8);  // On the old branch.
  ASSERT_TRUE(h.Call<AdvanceVersionAnswer>(
                   h.Trainer(), AdvanceVersion{.expected = PolicyVersion{1, 2}, .next = {2, 1}})
                  .ok());

  h.Load(h.Rollout(), {2, 1});
  std::set<uint64_t> drawn;
  const auto admitted = h.Admitted(4);
  for (const queue::Grant& grant : admitted->grants) drawn.insert(grant.row.ref.index);
  EXPECT_EQ(drawn, trained);
}

TEST(RestoreTest, AQueueThatLostTheJobGoesOnFromTheCursor) {
  std::string cursor;
  Ledger ledger;
  std::set<uint64_t> live;
  {
    Harness h;
    h.Start();
    h.RunStep(/*want_cursor=*/true);
    cursor = h.cursor;
    ledger = h.job().ledger();
    // Groups 0 and 1 are trained. Groups 2 and 3, which were admitted with them, live.
    for (uint64_t ordinal = 2; ordinal < 4; ++ordinal)
      live.insert(h.job().group(ordinal)->row.index);
  }
  Harness h(SmallSpec(), {1000}, /*queue_incarnation=*/2);

  const auto restored = RestartTrainer(h, cursor, "c1");
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->mode, RestoreMode::kRequeue);
  EXPECT_EQ(restored->version, 1);
  EXPECT_EQ(restored->ledger.hash, ledger.hash);
  EXPECT_EQ(restored->ledger.accepted, ledger.accepted);
  EXPECT_EQ(restored->ledger.durable, 4);
  EXPECT_EQ(restored->ledger.dropped.at("lost"), 4);
  EXPECT_EQ(restored->ledger.gap(), 0);
  ASSERT_TRUE(h.Call<AdvanceVersionAnswer>(h.Trainer(), AdvanceVersion{.next = {2, 1}}).ok());

  h.Load(h.Rollout(), {2, 1});
  const auto admitted = h.Admitted(4);
  std::set<uint64_t> drawn;
  for (const queue::Grant& grant : admitted->grants) {
    drawn.insert(grant.row.ref.index);
    EXPECT_EQ(grant.row.ref.occurrence, 1u);
    EXPECT_EQ(grant.group.incarnation, 2u);
    EXPECT_GE(grant.group.ordinal, 4u);  // Ordinals are not used again.
  }

  EXPECT_EQ(drawn, live);
}

TEST(RestoreTest, ABadCursorIsRefusedAndChangesNothing) {
  Harness h;
  h.Start();
  h.RunStep(/*want_cursor=*/true);
  std::string other = h.cursor;
  other.replace(other.find("\"hash\":\"") + 8, 2, "00");
  ++h.trainer_incarnation;
  h.SetWorkers();
  const auto restore = [&](const std::string& cursor) {
    return h.Call<RestoreAnswer>(h.Trainer(), Restore{cursor, "c"}).status();
  };

  EXPECT_EQ(ReasonOf(restore("rubbish")), "BAD_CURSOR");
  EXPECT_EQ(ReasonOf(restore("{\"format\":99}")), "BAD_CURSOR");
  EXPECT_EQ(ReasonOf(restore(other)), "BAD_CRC");
  EXPECT_EQ(h.job().version(), 1);
  EXPECT_TRUE(restore(h.cursor).ok());
}

TEST(RestoreTest, TheSameEventsGiveTheSameState) {
  Harness h;
  h.Start();
  for (int step = 0; step < 3; ++step) h.RunStep();
  h.Advance(absl::Seconds(61));
  Job twin({.id = std::string(32, 'a'), .queue_incarnation = 1, .seed = 99}, h.spec(),
           std::make_shared<Rows>(std::vector<uint64_t>{1000}));
  for (const Event& event : h.events) {
    Effects effects;
    twin.Step(event, &effects);
  }

  EXPECT_EQ(twin.ledger().hash, h.job().ledger().hash);
  EXPECT_EQ(twin.ledger().accepted, h.job().ledger().accepted);
  EXPECT_EQ(twin.ledger().event, h.job().ledger().event);
  EXPECT_EQ(twin.Stats().bytes, h.job().Stats().bytes);
}

}  // namespace
}  // namespace sluice::queue
