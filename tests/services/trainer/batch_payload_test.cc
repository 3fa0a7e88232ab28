#include "services/trainer/batch_payload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/base/digest.h"
#include "common/queue_client/queue_client.h"
#include "sluice/queue/v1/queue.pb.h"
#include "tests/common/queue_client/fake_queue.h"

namespace sluice::trainer {
namespace {

using ::testing::HasSubstr;

// Fetches a batch of one member of four tokens from a queue that has none of its data.
absl::Status FetchWithMaskedRun(uint64_t first, uint64_t count) {
  Served served;
  served.queue.on_get = [](FakeQueue::GetStream& stream, const queue::v1::GetRequest&) {
    queue::v1::GetHeader header;
    header.set_end(true);
    stream.Send(*rpc::EncodeFrame(header, {}));
    stream.End(absl::OkStatus());
  };
  served.Start();

  queue::v1::Batch batch;
  queue::v1::BatchGroup& group = *batch.add_groups();
  group.set_group(std::string(16, 'g'));
  queue::v1::BatchMember& member = *group.add_members();
  member.set_tokens(4);
  queue::v1::TokenRun& run = *member.add_masked();
  run.set_first(first);
  run.set_count(count);
  return FetchGroups(*served.client, batch, /*experts=*/0).status();
}

TEST(BatchPayload, AMaskedRunThatLeavesTheTrajectoryIsDataLossHoweverLargeItsNumbersAre) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  const std::pair<uint64_t, uint64_t> runs[] = {{3, 2}, {5, 0}, {kMost, 2}, {2, kMost}, {kMost, 1}};
  for (const auto& [first, count] : runs) {
    SCOPED_TRACE(testing::Message() << first << " + " << count);
    const absl::Status status = FetchWithMaskedRun(first, count);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("a masked run lies outside"));
  }
}

TEST(BatchPayload, AMaskedRunMayReachTheEndOfTheTrajectory) {
  EXPECT_THAT(std::string(FetchWithMaskedRun(2, 2).message()), HasSubstr("the CRC32C"));
}

// Fetches a member of one prompt token and four sampled ones: two turns of two tokens, of which
// only the second has a duration. rew_tok has these rows.
absl::StatusOr<std::vector<Group>> FetchWithTokenRewards(const std::vector<double>& rows) {
  const std::vector<int32_t> prompt = {1}, tokens = {5, 6, 7, 8};
  const std::vector<float> logprobs = {-1, -2, -3, -4};
  const auto bytes = [](const auto& values) {
    return absl::string_view(reinterpret_cast<const char*>(values.data()),
                             values.size() * sizeof values[0]);
  };
  Served served;
  served.queue.on_get = [&](FakeQueue::GetStream& stream, const queue::v1::GetRequest& request) {
    EXPECT_THAT(request.wants(1).names(), testing::Contains("rew_tok"));
    queue::v1::GetHeader header;
    header.set_end(true);
    std::string payload;
    common::v1::Record& first = *header.add_records();
    first.mutable_owner()->set_group(std::string(16, 'g'));
    first.mutable_piece()->set_count(1);
    first.mutable_piece()->set_role(common::v1::SEGMENT_ROLE_PROMPT);
    AddField("tokens", common::v1::DTYPE_I32, {1}, bytes(prompt), &first, &payload);
    for (uint32_t i = 0; i < 2; ++i) {
      common::v1::Record& record = *header.add_records();
      *record.mutable_owner() = first.owner();
      record.mutable_owner()->set_member(0);
      common::v1::Piece& piece = *record.mutable_piece();
      piece.set_at(1 + 2 * i);
      piece.set_count(2);
      piece.set_role(common::v1::SEGMENT_ROLE_SAMPLED);
      piece.set_trainable(true);
      piece.set_turn(i);
      piece.add_runs()->set_count(2);
      if (i == 1) piece.mutable_duration()->set_seconds(3);
      AddField("tokens", common::v1::DTYPE_I32, {2}, bytes(tokens).substr(8 * i, 8), &record,
               &payload);
      AddField("logprobs", common::v1::DTYPE_F32, {2}, bytes(logprobs).substr(8 * i, 8), &record,
               &payload);
    }
    if (!rows.empty()) {
      common::v1::Record& record = *header.add_records();
      *record.mutable_owner() = header.records(1).owner();
      AddField("rew_tok", common::v1::DTYPE_F64, {static_cast<int64_t>(rows.size() / 2), 2},
               bytes(rows), &record, &payload);
    }
    const auto owned = std::make_shared<const std::string>(std::move(payload));
    stream.Send(*rpc::EncodeFrame(header, {rpc::PayloadSlice{*owned, owned}}));
    stream.End(absl::OkStatus());
  };
  served.Start();

  queue::v1::Batch batch;
  queue::v1::BatchGroup& group = *batch.add_groups();
  group.set_group(std::string(16, 'g'));
  queue::v1::BatchMember& member = *group.add_members();
  member.set_tokens(5);
  member.set_trained(4);
  member.set_crc32c(Crc32c(bytes(logprobs), Crc32c(bytes(tokens))));
  const double reward = 1;
  common::v1::Record inlined;
  AddInlineField("task_reward", common::v1::DTYPE_F64,
                 {reinterpret_cast<const char*>(&reward), sizeof reward}, &inlined);
  *member.mutable_fields() = inlined.fields();
  return FetchGroups(*served.client, batch, /*experts=*/0);
}

TEST(BatchPayload, TokenRewardsAndTheTimesOfTurnsComeWithTheAnswer) {
  const auto groups = FetchWithTokenRewards({1, 0.25, 4, -0.5});
  ASSERT_TRUE(groups.ok()) << groups.status();
  const Trajectory& trajectory = (*groups)[0].members[0];
  EXPECT_EQ(trajectory.token_rewards, (std::vector<TokenReward>{{1, 0.25}, {4, -0.5}}));
  EXPECT_EQ(trajectory.turns, (std::vector<Turn>{{1, 2, 0}, {3, 2, 3}}));

  const auto none = FetchWithTokenRewards({});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE((*none)[0].members[0].token_rewards.empty());
}

TEST(BatchPayload, TokenRewardsThatDoNotFitTheAnswerAreDataLoss) {
  for (const std::vector<double>& rows : {std::vector<double>{0, 1},
                                          {5, 1},
                                          {2, 1, 2, 1},
                                          {2.5, 1},
                                          {1e30, 1},
                                          {-1, 1},
                                          {2, 1, 3},
                                          {std::nan(""), 1},
                                          {2, INFINITY},
                                          {1, 1, 2, 1, 3, 1, 4, 1, 5, 1, 6, 1}}) {
    const absl::Status status = FetchWithTokenRewards(rows).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rew_tok"));
  }
}

}  // namespace
}  // namespace sluice::trainer
