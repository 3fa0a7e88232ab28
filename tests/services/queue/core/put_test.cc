#include <cmath>
#include <limits>

#include "tests/services/queue/core/harness.h"

namespace sluice::queue {
namespace {

class PutTest : public testing::Test {
 protected:
  void SetUp() override {
    h_.Start();
    const auto admitted = h_.Admitted(2);
    grant_ = admitted->grants[0];
    lease_ = grant_.members[0].lease.id;
    ref_ = {grant_.group, 0, 1};
    ASSERT_TRUE(h_.PutOne(h_.Rollout(), Prompt(lease_)).ok());
  }

  Record Prompt(const Id16& lease) {
    return PieceRecord({.group = grant_.group}, lease, SegmentRole::kPrompt, 0, 4);
  }

  Record Piece(uint64_t at, uint32_t count) {
    return PieceRecord(ref_, lease_, SegmentRole::kSampled, at, count, {{{1, 0}, count, 0}});
  }

  absl::Status Put(Record record) {
    return h_.PutOne(h_.Rollout(), std::move(record), &watermark_, &repeats_);
  }

  Harness h_;
  queue::Grant grant_;
  Id16 lease_;
  TrajectoryRef ref_;
  uint64_t watermark_ = 0;
  uint32_t repeats_ = 0;
};

TEST_F(PutTest, TheSameBytesAgainAreARepeatAndChangeNothing) {
  ASSERT_TRUE(Put(Piece(4, 6)).ok());
  EXPECT_TRUE(Put(Piece(4, 6)).ok());
  EXPECT_EQ(repeats_, 1u);
  EXPECT_EQ(h_.job().ledger().tokens_generated, 6);
}

TEST_F(PutTest, TheSameTokensInOtherPiecesAreARepeat) {
  ASSERT_TRUE(Put(Piece(4, 3)).ok());
  ASSERT_TRUE(Put(Piece(7, 3)).ok());
  EXPECT_TRUE(Put(Piece(5, 4)).ok());
  EXPECT_EQ(repeats_, 1u);
}

TEST_F(PutTest, APieceWhoseEndOverflowsIsNotTakenForARepeat) {
  ASSERT_TRUE(Put(Piece(4, 6)).ok());

  Record far = Piece(10, 6);
  far.piece->at = ~0ull - 2;
  EXPECT_EQ(ReasonOf(Put(far)), "NOT_YET");
  EXPECT_EQ(repeats_, 0u);
}

TEST_F(PutTest, OtherBytesBelowTheWatermarkAreAConflictAndAnAlarm) {
  ASSERT_TRUE(Put(Piece(4, 3)).ok());
  Record other = Piece(4, 3);
  other.fields[1] = MakeField<float>("logprobs", Dtype::kF32, {-1, -2, -3});
  EXPECT_EQ(ReasonOf(Put(other)), "CONFLICT");

  Record version = Piece(4, 3);
  version.piece->runs = {{{0, 0}, 3, 0}};
  EXPECT_EQ(ReasonOf(Put(version)), "CONFLICT");
  EXPECT_EQ(h_.alarms.size(), 2u);
  EXPECT_EQ(h_.job().ledger().tokens_generated, 3);
}

TEST_F(PutTest, AGapAndAnOverlapSayWhereToGoOn) {
  ASSERT_TRUE(Put(Piece(4, 3)).ok());
  EXPECT_EQ(ReasonOf(Put(Piece(8, 2))), "NOT_YET");
  EXPECT_EQ(watermark_, 7u);
  EXPECT_EQ(ReasonOf(Put(Piece(6, 2))), "NOT_YET");
  EXPECT_EQ(watermark_, 7u);
}

TEST_F(PutTest, APieceBeforeItsPromptIsAGap) {
  Harness h;
  h.Start();
  const auto admitted = h.Admitted(1);

  const TrajectoryRef ref{admitted->grants[0].group, 0, 1};
  EXPECT_EQ(ReasonOf(h.PutOne(h.Rollout(),
                              PieceRecord(ref, admitted->grants[0].members[0].lease.id,
                                          SegmentRole::kSampled, 4, 1, {{{1, 0}, 1, 0}}),
                              &watermark_)),
            "NOT_YET");
  EXPECT_EQ(watermark_, 0u);
}

TEST_F(PutTest, ASecondWriterOfThePromptMustAgree) {
  const Id16 sibling = grant_.members[1].lease.id;
  EXPECT_TRUE(Put(Prompt(sibling)).ok());
  EXPECT_EQ(repeats_, 1u);
  Record other = Prompt(sibling);
  other.fields[0] = MakeField<int32_t>("tokens", Dtype::kI32, {9, 9, 9, 9});
  EXPECT_EQ(ReasonOf(Put(other)), "CONFLICT");
}

TEST_F(PutTest, ABadLogprobIsRefusedAndNothingStored) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    Record record = Piece(4, 1);
    record.fields[1] = MakeField<float>("logprobs", Dtype::kF32, {bad});
    EXPECT_EQ(ReasonOf(Put(record)), "NOT_FINITE");
  }
  EXPECT_EQ(h_.job().ledger().tokens_generated, 0);
}

TEST_F(PutTest, AMissingOrImpossibleStampIsRefusedNeverDefaulted) {
  Record few = Piece(4, 3);
  few.piece->runs[0].count = 2;
  EXPECT_EQ(ReasonOf(Put(few)), "BAD_PIECE");
  Record none = Piece(4, 3);
  none.piece->runs.clear();
  EXPECT_EQ(ReasonOf(Put(none)), "BAD_PIECE");

  Record ahead = Piece(4, 3);
  ahead.piece->runs[0].version = {1, 1};  // The job's version is 0.
  EXPECT_EQ(ReasonOf(Put(ahead)), "BAD_VERSION");
  Record stranger = Piece(4, 3);
  stranger.piece->runs[0].version = {9, 0};
  EXPECT_EQ(ReasonOf(Put(stranger)), "BAD_VERSION");
}

TEST_F(PutTest, OnlySampledTokensHaveRunsLogprobsAndALoss) {
  Record forced = PieceRecord(ref_, lease_, SegmentRole::kForced, 4, 2);
  forced.piece->trainable = true;
  EXPECT_EQ(ReasonOf(Put(forced)), "BAD_PIECE");
  forced.piece->trainable = false;
  forced.piece->runs = {{{1, 0}, 2, 0}};
  EXPECT_EQ(ReasonOf(Put(forced)), "BAD_PIECE");

  forced.piece->runs.clear();
  EXPECT_TRUE(Put(forced).ok());
  EXPECT_EQ(h_.job().ledger().tokens_generated, 0);
}

TEST_F(PutTest, SegmentsNeverFallAndAreUniform) {
  ASSERT_TRUE(Put(Piece(4, 1)).ok());
  Record back = Piece(5, 1);
  back.piece->segment = 0;
  EXPECT_EQ(ReasonOf(Put(back)), "BAD_PIECE");

  Record mixed = Piece(5, 1);
  mixed.piece->trainable = false;
  EXPECT_EQ(ReasonOf(Put(mixed)), "BAD_PIECE");
}

TEST_F(PutTest, BeyondTheReservationThePieceIsRefused) {
  Record record = Piece(4, 1);
  record.fields.push_back(TextField("routing", std::string(20000, 'x')));  // 9472 B are reserved.
  EXPECT_EQ(ReasonOf(Put(record)), "OVER_RESERVATION");
  EXPECT_TRUE(Put(Piece(4, 1)).ok());
}

TEST_F(PutTest, ABadRecordFailsNoOther) {
  const auto answer =
      h_.Call<PutAnswer>(h_.Rollout(), queue::Put{{Piece(4, 2), Piece(9, 1), Piece(6, 1)}});
  ASSERT_EQ(answer->failed.size(), 1u);
  EXPECT_EQ(answer->failed[0].record, 1u);
  EXPECT_EQ(h_.job().ledger().tokens_generated, 3);
}

TEST_F(PutTest, AWholeFieldIsWrittenOnce) {
  const auto put = [&](const std::string& text) {
    return Put({.owner = ref_, .lease = lease_, .fields = {TextField("messages", text)}});
  };
  ASSERT_TRUE(put("[1]").ok());

  EXPECT_TRUE(put("[1]").ok());
  EXPECT_EQ(repeats_, 1u);
  EXPECT_EQ(ReasonOf(put("[2]")), "CONFLICT");
}

TEST_F(PutTest, SealChecksTokensBytesAndFields) {
  ASSERT_TRUE(Put(Piece(4, 3)).ok());
  const uint32_t crc = h_.job().group(0)->members[0].log.crc32c();
  const auto seal = [&](uint64_t tokens, uint32_t crc32c) {
    return h_
        .Call<ItemsAnswer>(h_.Rollout(), Seal{{{.ref = ref_,
                                                .lease = lease_,
                                                .tokens = tokens,
                                                .crc32c = crc32c,
                                                .finish = Finish::kStop}}})
        ->items[0];
  };

  EXPECT_EQ(ReasonOf(seal(8, crc).status), "NOT_YET");
  EXPECT_EQ(seal(8, crc).watermark, 7u);
  EXPECT_EQ(ReasonOf(seal(7, crc + 1).status), "BAD_CRC");
  EXPECT_EQ(ReasonOf(seal(7, crc).status), "NOT_YET");  // The reward needs messages.

  ASSERT_TRUE(Put({.owner = ref_, .lease = lease_, .fields = {TextField("messages", "[]")}}).ok());
  EXPECT_TRUE(seal(7, crc).status.ok());
  EXPECT_TRUE(seal(7, crc).repeat);
  EXPECT_EQ(ReasonOf(Put(Piece(7, 1))), "LEASE_LOST");
  EXPECT_TRUE(Put(Piece(4, 3)).ok());  // A repeat still is one.
}

TEST_F(PutTest, ALateSealOfDroppedWorkLostItsLeaseAndOfFreedWorkIsGone) {
  ASSERT_TRUE(
      h_.Call<ItemsAnswer>(h_.Rollout(), Drop{{{{.group = grant_.group}, lease_, "nonfinite"}}})
          ->items[0]
          .status.ok());
  EXPECT_EQ(ReasonOf(h_.SealIt(h_.Rollout(), ref_, lease_).status), "LEASE_LOST");

  Harness h;
  h.Start();
  const auto admitted = h.Admitted(4);
  h.SampleAll(h.Rollout(), *admitted, {1, 0});
  h.ScoreAll();
  const auto batch = h.Acquired(0);

  const auto applied = h.ApplyBatch(*batch);
  ASSERT_TRUE(h.Call<DurableAnswer>(h.Trainer(), Durable{1, "c1", applied->ledger.hash}).ok());
  EXPECT_EQ(ReasonOf(h.SealIt(h.Rollout(), {admitted->grants[0].group, 0, 1},
                              admitted->grants[0].members[0].lease.id)
                         .status),
            "GONE");
}

TEST_F(PutTest, ADropIsCountedByReasonAndKnownWhenRepeated) {
  const Drop drop{{{{.group = grant_.group}, lease_, "prompt_too_long"}}};
  EXPECT_FALSE(h_.Call<ItemsAnswer>(h_.Rollout(), drop)->repeat);

  const auto again = h_.Call<ItemsAnswer>(h_.Rollout(), drop);
  EXPECT_TRUE(again->repeat);
  EXPECT_TRUE(again->items[0].status.ok());
  EXPECT_EQ(h_.job().ledger().dropped.at("prompt_too_long"), 2);
  EXPECT_EQ(h_.job().Stats().slots.at("used"), 0u);
  EXPECT_EQ(h_.job().Stats().bytes.at("reserved"), 0u);
  EXPECT_TRUE(absl::IsInvalidArgument(
      h_.Call<ItemsAnswer>(h_.Rollout(), Drop{{{{.group = grant_.group}, lease_, "bored"}}})
          ->items[0]
          .status));
}

TEST(DropTest, AJobWithoutAUsablePromptFailsOnceEachRowWasDropped) {
  Harness h(SmallSpec(), {3});
  h.Start();
  const uint64_t waits = h.Send(h.Trainer(), AcquireBatch{.k = 0});
  const auto drop = [&](const char* reason) {
    const auto admitted = h.Admitted(2);
    ASSERT_TRUE(admitted.ok()) << admitted.status();
    const Grant& grant = admitted->grants[0];
    ASSERT_TRUE(
        h.Call<ItemsAnswer>(h.Rollout(),
                            Drop{{{{.group = grant.group}, grant.members[0].lease.id, reason}}})
            .ok());
  };
  drop("prompt_too_long");
  drop("bad_row");

  EXPECT_FALSE(h.Answered(waits));

  drop("prompt_too_long");
  const absl::Status failed = h.Result<AcquireBatchAnswer>(waits).status();
  EXPECT_EQ(ReasonOf(failed), "NO_PROMPTS");
  EXPECT_THAT(std::string(failed.message()),
              testing::HasSubstr("all 3 were dropped, the last as prompt_too_long"));
  EXPECT_EQ(ReasonOf(h.Admitted(1).status()), "NO_PROMPTS");
}

TEST(DropTest, OneUsableRowKeepsTheJobGoingThroughEveryEpoch) {
  Harness h(SmallSpec(), {3});
  h.Start();
  for (int draw = 0; draw < 12; ++draw) {  // Four epochs.
    const auto admitted = h.Admitted(2);
    ASSERT_TRUE(admitted.ok()) << admitted.status();
    const Grant& grant = admitted->grants[0];
    EXPECT_EQ(grant.row.ref.epoch, draw / 3u);
    const char* reason = grant.row.ref.index == 1 ? "client_gone" : "prompt_too_long";
    ASSERT_TRUE(
        h.Call<ItemsAnswer>(h.Rollout(),
                            Drop{{{{.group = grant.group}, grant.members[0].lease.id, reason}}})
            .ok());
  }

  EXPECT_TRUE(h.Admitted(2).ok());
}

TEST_F(PutTest, BytesReadAreBytesWritten) {
  ASSERT_TRUE(Put(Piece(4, 3)).ok());
  ASSERT_TRUE(Put(Piece(7, 5)).ok());

  const auto read =
      h_.job().Read(h_.Rollout(), false, lease_,
                    {{.owner = {.group = grant_.group}}, {.owner = ref_, .from = 5, .to = 9}});
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->records.size(), 3u);
  EXPECT_EQ(read->records[0].fields[0].bytes.view(), Prompt(lease_).fields[0].bytes.view());

  std::string tokens;
  for (int i = 1; i < 3; ++i) tokens += std::string(read->records[i].fields[0].bytes.view());
  for (int i = 0; i < 4; ++i) {
    int32_t token;
    std::memcpy(&token, tokens.data() + 4 * i, 4);
    EXPECT_EQ(token, TokenAt(ref_, 5 + i));
  }

  EXPECT_EQ(read->records[2].piece->at, 7u);
  EXPECT_EQ(read->records[2].piece->runs[0].count, 2u);
  EXPECT_EQ(read->records[2].fields[0].bytes.crc32c,
            Crc32c(read->records[2].fields[0].bytes.view()));

  const auto missing = h_.job().Read(h_.Rollout(), false, lease_, {{.owner = {{1, 77}, 0, 1}}});
  EXPECT_EQ(missing->missing.size(), 1u);
  EXPECT_EQ(ReasonOf(h_.job().Read(h_.Rollout("r2"), false, lease_, {}).status()), "LEASE_LOST");
}

}  // namespace
}  // namespace sluice::queue
