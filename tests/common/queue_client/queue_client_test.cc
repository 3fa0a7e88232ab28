#include "common/queue_client/queue_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "common/base/digest.h"
#include "common/base/status.h"
#include "tests/common/queue_client/fake_queue.h"

namespace sluice {
namespace {

using common::v1::Record;
using common::v1::Want;

class QueueClientTest : public testing::Test {
 protected:
  // Answers Get with one message.
  static void Answer(FakeQueue::GetStream& stream, const std::vector<Record>& records,
                     const std::string& payload, bool end) {
    queue::v1::GetHeader header;
    for (const Record& record : records) *header.add_records() = record;
    header.set_end(end);
    const rpc::PayloadSlice slices[] = {{payload, nullptr}};
    stream.Send(*rpc::EncodeFrame(header, slices));
  }

  Served served_;
};

TEST_F(QueueClientTest, ACallNamesItsCallerAndTheAnswerComesBack) {
  served_.queue.on_apply = [](const queue::v1::ApplyRequest& request,
                              queue::v1::ApplyResponse* response) {
    EXPECT_EQ(request.call().job().job(), "job");
    EXPECT_EQ(request.call().job().worker(), "rollout-0");
    EXPECT_EQ(request.call().job().incarnation(), 3);
    EXPECT_EQ(request.call().request(), "");
    response->set_version(request.k() + 1);
    return absl::OkStatus();
  };
  served_.Start();
  queue::v1::ApplyRequest request;
  request.set_k(4);
  const auto response = served_.client->Apply(request);
  ASSERT_TRUE(response.ok()) << response.status();

  EXPECT_EQ(response->version(), 5);
}

TEST_F(QueueClientTest, AQueueThatHasNotHeardOfTheWorkerIsAskedAgain) {
  std::atomic<int> calls{0};
  served_.queue.on_apply = [&](const queue::v1::ApplyRequest&, queue::v1::ApplyResponse*) {
    return ++calls < 5
               ? ErrorWith(absl::StatusCode::kUnavailable,
                           {.reason = "NOT_LISTED", .retry_after = absl::Microseconds(10)}, "no")
               : absl::OkStatus();
  };

  served_.Start();
  EXPECT_TRUE(served_.client->Apply({}).ok());
  EXPECT_EQ(calls, 5);
}

TEST_F(QueueClientTest, ADrainEndsParkedCallsAlone) {
  served_.queue.on_apply = [](const queue::v1::ApplyRequest&, queue::v1::ApplyResponse*) {
    return absl::OkStatus();
  };
  served_.Start();
  auto admitted =
      std::async(std::launch::async, [&] { return served_.client->Admit({}).status(); });

  EXPECT_EQ(served_.queue.admits.Pop().call().request().size(), 16u);
  served_.drain.Trigger();
  EXPECT_EQ(admitted.get().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(served_.client->Apply({}).ok());

  served_.cancel.Trigger();
  EXPECT_EQ(served_.client->Apply({}).status().code(), absl::StatusCode::kCancelled);
}

TEST_F(QueueClientTest, GetPutsEachFieldInItsPlace) {
  served_.queue.on_get = [](FakeQueue::GetStream& stream, const queue::v1::GetRequest& request) {
    EXPECT_EQ(request.lease(), "lease");
    std::string payload;
    Record first = RecordOf(0), second = RecordOf(1);
    AddField("tokens", common::v1::DTYPE_I32, {2}, "abcdefgh", &first, &payload);
    AddInlineField("task_reward", common::v1::DTYPE_F64, "12345678", &first);
    AddField("logprobs", common::v1::DTYPE_F32, {1}, "ijkl", &second, &payload);
    Answer(stream, {first, second}, payload, false);
    Record third = RecordOf(2);
    payload.clear();
    AddField("messages", common::v1::DTYPE_UNSPECIFIED, {}, "[]", &third, &payload);
    Answer(stream, {third}, payload, true);
    stream.End(absl::OkStatus());
  };

  served_.Start();
  const auto fetched = served_.client->GetAll("lease", std::vector<Want>(3));
  ASSERT_TRUE(fetched.ok()) << fetched.status();

  ASSERT_EQ(fetched->size(), 3u);
  EXPECT_THAT((*fetched)[0].fields, testing::ElementsAre("abcdefgh", "12345678"));
  EXPECT_THAT((*fetched)[1].fields, testing::ElementsAre("ijkl"));
  EXPECT_THAT((*fetched)[2].fields, testing::ElementsAre("[]"));
}

TEST_F(QueueClientTest, GetReadsABrokenStreamAgainFromItsStart) {
  std::atomic<int> streams{0};
  served_.queue.on_get = [&](FakeQueue::GetStream& stream, const queue::v1::GetRequest&) {
    std::string payload;
    Record record = RecordOf(0);
    AddField("tokens", common::v1::DTYPE_I32, {1}, "abcd", &record, &payload);
    const int number = streams++;
    Answer(stream, {record}, payload, number == 2);
    // The first stream breaks, and the second ends without its last message.
    stream.End(number == 0 ? absl::UnavailableError("gone for now") : absl::OkStatus());
  };

  served_.Start();
  char to[4];
  EXPECT_TRUE(
      served_.client->Get("lease", std::vector<Want>(1), [&](const Record&, int) { return to; })
          .ok());
  EXPECT_EQ(std::string(to, 4), "abcd");
  EXPECT_EQ(streams, 3);
}

TEST_F(QueueClientTest, ABitFlippedOnTheWayIsDataLoss) {
  served_.queue.on_get = [](FakeQueue::GetStream& stream, const queue::v1::GetRequest&) {
    std::string payload;
    Record record = RecordOf(6);
    AddField("tokens", common::v1::DTYPE_I32, {1}, "abcd", &record, &payload);
    payload[2] ^= 1;
    Answer(stream, {record}, payload, true);
    stream.End(absl::OkStatus());
  };

  served_.Start();
  const absl::Status status = served_.client->GetAll("lease", std::vector<Want>(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReasonOf(status), "BAD_CRC");
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("tokens of group 67676767676767676767676767676767 member 6"));
}

TEST_F(QueueClientTest, FieldsBeyondThePayloadAreRefusedBeforeTheyAreAllocated) {
  served_.queue.on_get = [](FakeQueue::GetStream& stream, const queue::v1::GetRequest&) {
    Record record = RecordOf(0);
    record.add_fields()->set_bytes(uint64_t{1} << 60);
    Answer(stream, {record}, "abcd", true);
    stream.End(absl::OkStatus());
  };

  served_.Start();
  EXPECT_EQ(served_.client->GetAll("lease", std::vector<Want>(1)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(QueueClientTest, ARecordThatIsGoneIsListedOrIsAnError) {
  served_.queue.on_get = [](FakeQueue::GetStream& stream, const queue::v1::GetRequest& request) {
    queue::v1::GetHeader header;
    *header.add_missing() = request.wants(1);
    header.set_end(true);
    stream.Send(*rpc::EncodeFrame(header, {}));
    stream.End(absl::OkStatus());
  };

  served_.Start();
  std::vector<Want> wants(2), missing;
  wants[1].mutable_owner()->set_member(5);

  ASSERT_TRUE(served_.client->GetAll("lease", wants, &missing).ok());
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(missing[0].owner().member(), 5u);
  EXPECT_EQ(ReasonOf(served_.client->GetAll("lease", wants).status()), "GONE");
}

}  // namespace
}  // namespace sluice
