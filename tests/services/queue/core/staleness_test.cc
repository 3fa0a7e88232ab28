#include "common/base/failpoint.h"
#include "tests/services/queue/core/harness.h"

namespace sluice::queue {
namespace {

GroupMember MemberWith(const std::vector<VersionRun>& runs) {
  GroupMember member;
  uint64_t at = 4;
  for (const VersionRun& run : runs) {
    const Record record = PieceRecord({}, {}, SegmentRole::kSampled, at, run.count, {run});
    member.log.Append({*record.piece, record.fields});
    at += run.count;
  }
  return member;
}

TEST(StalenessTest, TokensBeyondTheBoundLeaveTheMask) {
  Spec spec = SmallSpec();
  spec.max_staleness = 2;
  const GroupMember member =
      MemberWith({{{1, 3}, 2, 0}, {{1, 4}, 1, 0}, {{1, 5}, 3, 0}, {{1, 7}, 1, 0}});

  const Verdict verdict = Judge(member, 7, spec, Branch());
  EXPECT_TRUE(verdict.trainable);
  EXPECT_EQ(verdict.trained, 4u);
  EXPECT_EQ(verdict.masked_count, 3u);
  EXPECT_THAT(verdict.masked, testing::ElementsAre(TokenRun{4, 3}));  // Two runs, merged.
  EXPECT_EQ(verdict.oldest, (PolicyVersion{1, 5}));
  EXPECT_EQ(verdict.newest, (PolicyVersion{1, 7}));
  EXPECT_EQ(verdict.histogram, (std::map<int64_t, int64_t>{{0, 1}, {2, 3}}));
  EXPECT_EQ(CountOutOfBounds(member, verdict.masked, 7, spec, Branch()), 0u);
  EXPECT_EQ(CountOutOfBounds(member, {}, 7, spec, Branch()), 3u);
  EXPECT_EQ(CountOutOfBounds(member, verdict.masked, 8, spec, Branch()), 3u);
}

TEST(StalenessTest, TooFewTokensLeftMakeItIllegalAndStrictAllowsNone) {
  Spec spec = SmallSpec();
  spec.max_staleness = 0;
  spec.min_trainable = 2;
  const GroupMember member = MemberWith({{{1, 3}, 2, 0}, {{1, 4}, 1, 0}});
  EXPECT_FALSE(Judge(member, 4, spec, Branch()).trainable);
  EXPECT_STREQ(Judge(member, 4, spec, Branch()).reason, "stale");

  spec.min_trainable = 1;
  EXPECT_TRUE(Judge(member, 4, spec, Branch()).trainable);
  spec.statistic = Statistic::kStrict;
  EXPECT_FALSE(Judge(member, 4, spec, Branch()).trainable);
}

TEST(StalenessTest, AMemberWithoutTrainableTokensIsLegal) {
  EXPECT_TRUE(Judge(GroupMember(), 9, SmallSpec(), Branch()).trainable);
}

TEST(StalenessTest, VersionsBeyondAForkAreOffTheBranch) {
  Branch branch;
  branch.AddFork(1, 0);
  branch.AddFork(2, 5);
  EXPECT_TRUE(branch.Holds({1, 5}));
  EXPECT_FALSE(branch.Holds({1, 6}));
  EXPECT_TRUE(branch.Holds({2, 6}));

  branch.AddFork(3, 4);
  EXPECT_FALSE(branch.Holds({1, 5}));
  EXPECT_FALSE(branch.Holds({2, 5}));
  Spec spec = SmallSpec();
  spec.max_staleness = 9;
  EXPECT_STREQ(Judge(MemberWith({{{2, 5}, 3, 0}}), 6, spec, branch).reason, "off_branch");
}

// One group runs while the version moves on; then step 7 trains it. The parameter is max_staleness.
class BoundTest : public testing::TestWithParam<int> {};

TEST_P(BoundTest, NoTokenBeyondTheBoundIsEverTrained) {
  Spec spec = SmallSpec();
  spec.max_staleness = GetParam();
  spec.groups_per_step = 1;
  spec.group_size = 1;
  spec.group_min = 1;
  spec.oversample = 1;  // Each step has a second slot, so the slow group holds up no other.
  Harness h(spec);
  h.Start();

  const auto first = h.Admitted(1);
  ASSERT_TRUE(first.ok());
  const TrajectoryRef ref{first->grants[0].group, 0, 1};
  const Id16 lease = first->grants[0].members[0].lease.id;
  ASSERT_TRUE(
      h.PutOne(h.Rollout(), PieceRecord({.group = ref.group}, lease, SegmentRole::kPrompt, 0, 4))
          .ok());

  uint64_t at = 4;
  for (int64_t version = 0; version < 7; ++version) {
    // The slow group samples a token per version.
    const absl::Status put = h.PutOne(
        h.Rollout(), PieceRecord(ref, lease, SegmentRole::kSampled, at, 1, {{{1, version}, 1, 0}}));
    if (!put.ok()) break;  // With max_staleness 0 it is dropped.
    ++at;
    h.RunStep();
    if (testing::Test::HasFatalFailure()) return;
  }

  if (GetParam() == 0) {
    EXPECT_EQ(h.job().ledger().dropped.at("stale"), 1);
    return;
  }

  ASSERT_TRUE(
      h.PutOne(h.Rollout(), {.owner = ref, .lease = lease, .fields = {TextField("messages", "[]")}})
          .ok());
  ASSERT_TRUE(h.SealIt(h.Rollout(), ref, lease).status.ok());
  h.ScoreAll();

  const auto batch = h.Acquired(7);
  ASSERT_TRUE(batch.ok()) << batch.status();
  ASSERT_EQ(batch->groups[0].group, ref.group);  // The oldest goes first.

  const BatchMember& member = batch->groups[0].members[0];
  // Versions 7 - max_staleness to 6 are young enough.
  EXPECT_EQ(member.trained, static_cast<uint64_t>(GetParam()));
  EXPECT_EQ(member.masked[0].count, 7u - GetParam());
  EXPECT_EQ(member.oldest.number, 7 - GetParam());

  ASSERT_TRUE(h.ApplyBatch(*batch).ok());
  for (const auto& [age, count] : h.job().Stats().staleness) EXPECT_LE(std::stoll(age), GetParam());
  EXPECT_GE(h.job().Stats().staleness.at(absl::StrCat(GetParam())), 1);
  EXPECT_EQ(h.job().ledger().tokens_masked, 7 - GetParam());
}

INSTANTIATE_TEST_SUITE_P(Eta, BoundTest, testing::Values(0, 1, 4));

TEST(StalenessTest, StrictDropsATrajectoryForOneTokenTooOld) {
  Spec spec = SmallSpec();
  spec.statistic = Statistic::kStrict;
  spec.straggler = Straggler::kDrop;
  spec.groups_per_step = 1;
  spec.group_size = spec.group_min = 1;
  spec.oversample = 1;
  Harness h(spec);
  h.Start();

  const auto first = h.Admitted(1);
  const TrajectoryRef ref{first->grants[0].group, 0, 1};
  const Id16 lease = first->grants[0].members[0].lease.id;
  ASSERT_TRUE(
      h.PutOne(h.Rollout(), PieceRecord({.group = ref.group}, lease, SegmentRole::kPrompt, 0, 4))
          .ok());
  ASSERT_TRUE(
      h.PutOne(h.Rollout(), PieceRecord(ref, lease, SegmentRole::kSampled, 4, 1, {{{1, 0}, 1, 0}}))
          .ok());

  // Step 1, which is cut next, may still train version 0; step 2 may not.
  h.SampleAll(h.Rollout(), *h.Admitted(1), {1, 0});
  h.ScoreAll();
  ASSERT_TRUE(h.ApplyBatch(*h.Acquired(0)).ok());
  h.Publish();

  EXPECT_NE(h.job().group(0), nullptr);

  h.RunStep();
  EXPECT_EQ(h.job().group(0), nullptr);
  EXPECT_GE(h.job().ledger().dropped.at("stale"), 1);
}

#ifdef SLUICE_FAILPOINTS
TEST(StalenessTest, WhatABlindCutLetThroughApplyRefuses) {
  Spec spec = SmallSpec();
  spec.groups_per_step = 1;
  spec.group_size = spec.group_min = 1;
  spec.oversample = 1;
  Harness h(spec);
  h.Start();

  const auto first = h.Admitted(1);
  const TrajectoryRef ref{first->grants[0].group, 0, 1};
  const Id16 lease = first->grants[0].members[0].lease.id;
  ASSERT_TRUE(
      h.PutOne(h.Rollout(), PieceRecord({.group = ref.group}, lease, SegmentRole::kPrompt, 0, 4))
          .ok());
  ASSERT_TRUE(
      h.PutOne(h.Rollout(), PieceRecord(ref, lease, SegmentRole::kSampled, 4, 2, {{{1, 0}, 2, 0}}))
          .ok());

  h.RunStep();
  h.RunStep();
  ASSERT_TRUE(
      h.PutOne(h.Rollout(), PieceRecord(ref, lease, SegmentRole::kSampled, 6, 1, {{{1, 2}, 1, 0}}))
          .ok());
  ASSERT_TRUE(
      h.PutOne(h.Rollout(), {.owner = ref, .lease = lease, .fields = {TextField("messages", "[]")}})
          .ok());
  ASSERT_TRUE(h.SealIt(h.Rollout(), ref, lease).status.ok());
  h.ScoreAll();

  h.check = false;    // The job's state is wrong on purpose, which FindViolations() reports.
  h.reload_each = 0;  // A failpoint is no event, so it would not hit the twin.
  ASSERT_TRUE(ArmFailpoint("queue.cut.keep_over_age", "error", 1).ok());

  const auto batch = h.Acquired(2);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->groups[0].members[0].trained, 3u);

  const absl::Status refused = h.ApplyBatch(*batch).status();
  EXPECT_EQ(ReasonOf(refused), "STALE");
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("2 tokens"));
  EXPECT_EQ(h.job().version(), 2);
  EXPECT_EQ(h.job().counters().violations.at("staleness"), 1);
  EXPECT_EQ(h.job().FindViolations().size(), 1u);
}
#endif

}  // namespace
}  // namespace sluice::queue
