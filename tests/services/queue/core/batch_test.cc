#include <openssl/sha.h>

#include "tests/services/queue/core/harness.h"

namespace sluice::queue {
namespace {

// CRC-32C bit by bit, from its definition.
uint32_t SlowCrc32c(absl::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82F63B78 : crc >> 1;
  }
  return ~crc;
}

// Appends `value` in so many bytes, little-endian.
void AppendLittleEndian(uint64_t value, int bytes, std::string& out) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> 8 * i));
}

TEST(BatchTest, AStepGoesFromAdmissionToTheNextVersion) {
  Harness h;
  h.Start();
  for (int i = 0; i < 5; ++i) h.RunStep();
  EXPECT_EQ(h.job().version(), 5);
  EXPECT_EQ(h.job().ledger().applied, 5 * 4);
  EXPECT_EQ(h.job().ledger().gap(), 0);
}

TEST(BatchTest, TheHashChainIsThatOfTheCanonicalBytesBuiltAnew) {
  Harness h;
  h.Start();
  std::string chain(32, '\0');
  for (int64_t k = 0; k < 3; ++k) {
    const auto admitted = h.Admitted(1000);
    h.SampleAll(h.Rollout(), *admitted, {1, h.loaded});
    h.ScoreAll();
    const auto batch = h.Acquired(k);

    std::string canonical;
    for (const BatchGroup& group : batch->groups) {
      for (const BatchMember& member : group.members) {
        std::string tokens, logprobs;
        const auto read = h.job().Read(h.Trainer(), false, batch->lease.id,
                                       {{.owner = {group.group, member.member, member.attempt}}});
        for (const Record& record : read->records) {
          for (const Field& field : record.fields) {
            if (field.name == "tokens") tokens += std::string(field.bytes.view());
            if (field.name == "logprobs") logprobs += std::string(field.bytes.view());
          }
        }

        // The group's id is big-endian: u32 incarnation, 4 bytes of 0, u64 ordinal. What follows is
        // little-endian.
        for (int i = 3; i >= 0; --i)
          canonical.push_back(static_cast<char>(group.group.incarnation >> 8 * i));
        canonical.append(4, '\0');
        for (int i = 7; i >= 0; --i)
          canonical.push_back(static_cast<char>(group.group.ordinal >> 8 * i));
        AppendLittleEndian(member.member, 4, canonical);
        AppendLittleEndian(member.attempt, 4, canonical);
        AppendLittleEndian(SlowCrc32c(tokens + logprobs), 4, canonical);
        AppendLittleEndian(member.masked.size(), 4, canonical);
        for (const TokenRun& run : member.masked)
          AppendLittleEndian(run.first, 8, canonical), AppendLittleEndian(run.count, 8, canonical);
      }
    }

    EXPECT_EQ(batch->crc32c, SlowCrc32c(canonical));

    std::string link = chain;
    AppendLittleEndian(k, 8, link);
    link += canonical;
    SHA256(reinterpret_cast<const uint8_t*>(link.data()), link.size(),
           reinterpret_cast<uint8_t*>(chain.data()));
    EXPECT_EQ(h.ApplyBatch(*batch)->ledger.hash, chain);

    h.Publish();
  }
}

TEST(BatchTest, EveryAskerGetsTheSameFrozenList) {
  Harness h;
  h.Start();
  h.SampleAll(h.Rollout(), *h.Admitted(100), {1, 0});
  h.ScoreAll();

  const auto first = h.Acquired(0), again = h.Acquired(0);
  EXPECT_FALSE(first->repeat);
  EXPECT_TRUE(again->repeat);
  EXPECT_EQ(again->lease.id, first->lease.id);
  EXPECT_EQ(again->crc32c, first->crc32c);
  ASSERT_EQ(again->groups.size(), 2u);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(again->groups[i].group, first->groups[i].group);
  EXPECT_TRUE(first->groups[0].row.json.empty());
  EXPECT_EQ(first->groups[0].members[1].fields.size(), 3u);  // messages, reward_status, task_reward
}

// Groups 0 and 1 hold the slots of step 0.
TEST(BatchTest, ASlowFirstSampleHoldsUpItsOwnGroupAlone) {
  Harness h;
  h.Start();
  const auto admitted = h.Admitted(100);
  for (size_t g = 0; g < admitted->grants.size(); ++g) {
    for (const Member& member : admitted->grants[g].members) {
      if (g > 0 || member.member > 0)
        h.Sample(h.Rollout(), admitted->grants[g], member, {{{1, 0}, 3, 0}});
    }
  }
  h.ScoreAll();

  const auto batch = h.Acquired(0);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->groups[0].group.ordinal, 1u);
  EXPECT_EQ(batch->groups[1].group.ordinal, 2u);
  EXPECT_EQ(h.job().group(0)->slot, 1);  // Traded with group 2, which overtook it.
}

TEST(BatchTest, TheNextBatchMayBePrefetchedButNoneAfterIt) {
  Harness h;
  h.Start();
  h.SampleAll(h.Rollout(), *h.Admitted(100), {1, 0});
  h.ScoreAll();
  const uint64_t early = h.Send(h.Trainer(), AcquireBatch{.k = 1});
  EXPECT_FALSE(h.Answered(early));  // Batch 0 is cut first.

  ASSERT_TRUE(h.Acquired(0).ok());
  const auto next = h.Result<AcquireBatchAnswer>(early);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->k, 1);
  EXPECT_EQ(ReasonOf(h.Acquired(2).status()), "NOT_YET");
  EXPECT_EQ(ReasonOf(h.ApplyBatch(*next).status()), "NOT_YET");
}

TEST(BatchTest, OnPolicyGroupsComeInSlicesAsTheyFinishAndLeftoversAreDropped) {
  Spec spec = SmallSpec();
  spec.max_staleness = 0;
  spec.groups_per_step = 2;
  spec.oversample = 0.5;
  Harness h(spec);
  h.Start();
  const auto admitted = h.Admitted(100);
  ASSERT_EQ(admitted->grants.size(), 3u);  // ceil(2 x 1.5)
  const auto finish = [&](int g) {
    for (const Member& member : admitted->grants[g].members)
      h.Sample(h.Rollout(), admitted->grants[g], member, {{{1, 0}, 3, 0}});
    h.ScoreAll();
  };

  const uint64_t call = h.Send(h.Trainer(), AcquireBatch{.k = 0, .stream = true});
  EXPECT_FALSE(h.Answered(call));

  finish(2);
  const auto slice = h.Result<AcquireBatchAnswer>(call);
  ASSERT_EQ(slice->groups.size(), 1u);
  EXPECT_EQ(slice->groups[0].group.ordinal, 2u);
  EXPECT_FALSE(slice->closed);
  EXPECT_EQ(ReasonOf(h.ApplyBatch(*slice).status()), "NOT_YET");

  const uint64_t more = h.Send(h.Trainer(), AcquireBatch{.k = 0, .from = 1, .stream = true});
  finish(0);

  const auto last = h.Result<AcquireBatchAnswer>(more);
  EXPECT_TRUE(last->closed);
  EXPECT_EQ(last->size, 2u);
  EXPECT_EQ(last->from, 1u);
  EXPECT_EQ(last->lease.id, slice->lease.id);
  EXPECT_EQ(h.job().ledger().dropped.at("stale"), 2);  // Group 1 fits no later step.
  EXPECT_EQ(h.cancel.size(), 2u);

  const auto whole = h.Acquired(0);
  EXPECT_EQ(whole->groups[0].group.ordinal, 2u);
  EXPECT_EQ(whole->groups[1].group.ordinal, 0u);

  // There is no slot until the engine holds the next version.
  ASSERT_TRUE(h.ApplyBatch(*last).ok());
  const uint64_t admit = h.Send(h.Rollout(), Admit{.request = h.Request(), .room = 1});
  EXPECT_FALSE(h.Answered(admit));

  h.Publish();
  EXPECT_EQ(h.Result<AdmitAnswer>(admit)->grants[0].step, 1);
}

TEST(BatchTest, LeftoversOfAnOversampledStepMoveToTheNextOne) {
  Spec spec = SmallSpec();
  spec.oversample = 0.5;
  Harness h(spec);
  h.Start();
  const auto admitted = h.Admitted(100);
  ASSERT_EQ(admitted->grants.size(), 6u);
  h.SampleAll(h.Rollout(), *admitted, {1, 0});
  h.ScoreAll();
  ASSERT_TRUE(h.ApplyBatch(*h.Acquired(0)).ok());

  // Step 1 is full as long as the engine holds version 0.
  EXPECT_EQ(h.job().Stats().slots.at("overdue"), 1u);

  h.Publish();
  ASSERT_TRUE(h.Admitted(100).ok());
  EXPECT_EQ(h.job().Stats().slots.at("overdue"), 0u);
  EXPECT_EQ(h.job().group(2)->slot, 2);
}

TEST(BatchTest, ApplyIsOnceAndNeedsTheLeaseAndTheBytes) {
  Harness h;
  h.Start();
  h.SampleAll(h.Rollout(), *h.Admitted(100), {1, 0});
  h.ScoreAll();
  auto batch = *h.Acquired(0);

  AcquireBatchAnswer wrong = batch;
  wrong.crc32c ^= 1;
  EXPECT_EQ(ReasonOf(h.ApplyBatch(wrong).status()), "BAD_CRC");

  wrong = batch;
  wrong.lease.id = h.Request();
  EXPECT_EQ(ReasonOf(h.ApplyBatch(wrong).status()), "LEASE_LOST");
  EXPECT_EQ(h.job().version(), 0);

  const auto first = h.ApplyBatch(batch), again = h.ApplyBatch(batch, /*want_cursor=*/true);
  EXPECT_FALSE(first->repeat);
  EXPECT_TRUE(again->repeat);
  EXPECT_EQ(again->version, 1);
  EXPECT_FALSE(again->cursor.empty());
  EXPECT_EQ(again->ledger.applied, 4);
  EXPECT_EQ(again->ledger.hash, first->ledger.hash);
}

TEST(BatchTest, ALeaseOfABatchThatRunsOutIsGivenAnewForTheSameList) {
  Harness h;
  h.Start();
  h.SampleAll(h.Rollout(), *h.Admitted(100), {1, 0});
  h.ScoreAll();
  const auto first = h.Acquired(0);
  h.Advance(absl::Seconds(61));
  EXPECT_EQ(ReasonOf(h.ApplyBatch(*first).status()), "LEASE_LOST");

  const auto again = h.Acquired(0);
  EXPECT_NE(again->lease.id, first->lease.id);
  EXPECT_EQ(again->crc32c, first->crc32c);
  EXPECT_TRUE(h.ApplyBatch(*again).ok());
}

TEST(BatchTest, ASkippedStepMakesAVersionAndTrainsNothing) {
  Harness h;
  h.Start();
  h.SampleAll(h.Rollout(), *h.Admitted(100), {1, 0});
  h.ScoreAll();
  const auto batch = h.Acquired(0);

  const auto applied =
      h.Call<ApplyAnswer>(h.Trainer(), queue::Apply{.k = 0,
                                                    .lease = batch->lease.id,
                                                    .crc32c = batch->crc32c,
                                                    .skipped = "nonfinite gradient"});
  EXPECT_EQ(applied->version, 1);
  EXPECT_EQ(applied->ledger.tokens_trained, 0);
  EXPECT_EQ(applied->ledger.applied, 4);
}

TEST(BatchTest, TheVersionMovesByCompareAndSet) {
  Harness h;
  h.Start();
  const auto advance = [&](std::optional<PolicyVersion> expected, PolicyVersion next) {
    return h.Call<AdvanceVersionAnswer>(h.Trainer(),
                                        AdvanceVersion{.expected = expected, .next = next});
  };
  EXPECT_TRUE(absl::IsInvalidArgument(advance(PolicyVersion{1, 0}, {1, 1}).status()));  // K is 0.

  h.RunStep();
  EXPECT_TRUE(advance(PolicyVersion{1, 0}, {1, 1})->repeat);
  const absl::Status lost = advance(PolicyVersion{1, 0}, {1, 0}).status();
  EXPECT_EQ(ReasonOf(lost), "LOST_RACE");
  EXPECT_EQ(DetailOf(lost).current, "1:1");
}

TEST(BatchTest, DurableFreesWhatTheCheckpointHolds) {
  Harness h;
  h.Start();
  h.RunStep();
  const std::string hash = h.job().ledger().hash;
  h.RunStep();
  const auto durable = [&](int64_t version, const std::string& with) {
    return h.Call<DurableAnswer>(h.Trainer(), Durable{version, "c", with});
  };

  EXPECT_EQ(ReasonOf(durable(1, h.job().ledger().hash).status()), "BAD_CRC");
  EXPECT_EQ(ReasonOf(durable(3, hash).status()), "NOT_YET");
  EXPECT_FALSE(durable(1, hash)->repeat);
  EXPECT_TRUE(durable(1, hash)->repeat);
  EXPECT_EQ(h.job().ledger().durable, 4);
  EXPECT_EQ(h.job().ledger().applied, 4);
  EXPECT_EQ(ReasonOf(h.Acquired(0).status()), "GONE");
}

TEST(BatchTest, GroupsWithoutSignalAreFilteredAndTheirSlotsComeBack) {
  Spec spec = SmallSpec();
  spec.filter = Filter::kSignal;
  spec.max_rejected_steps = 2;
  Harness h(spec);
  h.Start();
  const auto reject = [&] {
    h.SampleAll(h.Rollout(), *h.Admitted(2), {1, 0});
    const auto leased = h.Call<LeaseTasksAnswer>(
        h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 2}}});
    for (const TaskGrant& task : leased->tasks) ASSERT_TRUE(h.PutReward(task, 1).ok());
  };
  const uint64_t waits = h.Send(h.Trainer(), AcquireBatch{.k = 0});
  for (int i = 0; i < 3; ++i) reject();

  EXPECT_EQ(h.job().ledger().dropped.at("filtered"), 6);
  EXPECT_EQ(h.job().Stats().slots.at("used"), 0u);
  EXPECT_FALSE(h.Answered(waits));

  reject();  // Two steps' worth of groups in a row are rejected: the job fails.
  const absl::Status failed = h.Result<AcquireBatchAnswer>(waits).status();
  EXPECT_EQ(ReasonOf(failed), "NO_SIGNAL");
  EXPECT_THAT(std::string(failed.message()), testing::HasSubstr("all one 4"));
  EXPECT_EQ(ReasonOf(h.Admitted(1).status()), "NO_SIGNAL");
}

TEST(BatchTest, OneGroupWithSignalStartsTheCountAnew) {
  Spec spec = SmallSpec();
  spec.filter = Filter::kSignal;
  spec.max_rejected_steps = 1;
  Harness h(spec);
  h.Start();
  for (int i = 0; i < 4; ++i) {
    h.SampleAll(h.Rollout(), *h.Admitted(2), {1, 0});
    const auto leased = h.Call<LeaseTasksAnswer>(
        h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 2}}});
    for (const TaskGrant& task : leased->tasks) {
      ASSERT_TRUE(h.PutReward(task, i % 2 == 0 ? 0 : *task.owner.member).ok());
    }
  }

  EXPECT_EQ(h.job().Stats().groups.at("accepted"), 2u);
  EXPECT_EQ(h.job().counters().filtered.at("all_zero"), 2);
}

TEST(BatchTest, SupervisedRowsRideInBatchesAndTheEpochEndsWithAShortOne) {
  Spec spec = SmallSpec();
  spec.rows_only = true;
  spec.epochs = 1;
  spec.tasks.clear();
  Harness h(spec, {3});
  h.Start();

  const auto first = h.Acquired(0);
  ASSERT_EQ(first->groups.size(), 2u);
  EXPECT_FALSE(first->groups[0].row.json.empty());

  ASSERT_TRUE(h.ApplyBatch(*first).ok());
  const auto second = h.Acquired(1);
  EXPECT_EQ(second->size, 1u);
  ASSERT_TRUE(h.ApplyBatch(*second).ok());
  EXPECT_EQ(ReasonOf(h.Acquired(2).status()), "END");
  EXPECT_EQ(h.job().ledger().applied, 3);
}

TEST(BatchTest, TheLastBatchOfTheDataIsShort) {
  Spec spec = SmallSpec();
  spec.epochs = 1;
  Harness h(spec, {3});
  h.Start();
  h.RunStep();

  const auto last = h.Acquired(1);
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->size, 1u);

  ASSERT_TRUE(h.ApplyBatch(*last).ok());
  EXPECT_EQ(ReasonOf(h.Acquired(2).status()), "END");
}

TEST(BatchTest, AWaitForABatchNamesWhoHoldsItUp) {
  Harness h;
  h.Start();
  const auto edge = [&] {
    const uint64_t call = h.Send(h.Trainer(), AcquireBatch{.k = 0, .wait = absl::Seconds(1)});
    h.Advance(absl::Seconds(1));
    return *h.Result<AcquireBatchAnswer>(call)->edge;
  };

  EXPECT_EQ(edge().on.kind, NodeKind::kSlot);

  const auto admitted = h.Admitted(100);
  EXPECT_EQ(edge().on.daemon, "r1");
  h.SampleAll(h.Rollout(), *admitted, {1, 0});
  EXPECT_EQ(edge().on.kind, NodeKind::kTask);
  EXPECT_THAT(edge().cause, testing::HasSubstr("pool cpu"));
}

// One row: every group has the same prompt.
TEST(BatchTest, ThePoolHoldsRewardsOfOtherSamplesOfThePrompt) {
  Harness h(SmallSpec(), {1});
  h.Start();
  h.SampleAll(h.Rollout(), *h.Admitted(100), {1, 0});
  h.ScoreAll();  // Four groups, members rewarded 0 and 1.

  const auto batch = h.Acquired(0);
  EXPECT_THAT(batch->groups[0].pool, testing::UnorderedElementsAre(0, 1, 0, 1, 0, 1));
}

}  // namespace
}  // namespace sluice::queue
