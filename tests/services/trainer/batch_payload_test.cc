#include "services/trainer/batch_payload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

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

}  // namespace
}  // namespace sluice::trainer
