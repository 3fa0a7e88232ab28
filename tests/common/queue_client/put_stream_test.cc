#include "common/queue_client/put_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "common/base/status.h"
#include "tests/common/queue_client/fake_queue.h"

namespace sluice {
namespace {

using queue::v1::PutHeader;

class PutStreamTest : public testing::Test {
 protected:
  // Puts member `n` with `bytes` of payload.
  absl::Status Put(PutStream& stream, uint32_t n, size_t bytes = 4) {
    common::v1::Record record = RecordOf(n);
    std::string payload;
    AddField("tokens", common::v1::DTYPE_I32, {static_cast<int64_t>(bytes / 4)},
             std::string(bytes, static_cast<char>('a' + n % 26)), &record, &payload);
    return stream.Put(std::move(record), std::move(payload),
                      [this, n](const PutOutcome& outcome) { outcomes_.Push({n, outcome}); });
  }

  Served served_;
  Handed<std::pair<uint32_t, PutOutcome>> outcomes_;
};

TEST_F(PutStreamTest, RecordsArriveInOrderAndAreAcknowledgedInOrder) {
  std::mutex mu;
  std::string members, bytes;
  served_.queue.on_put = [&](FakeQueue::PutStreamEnd& stream, const PutHeader& header,
                             const std::string& payload) {
    std::lock_guard lock(mu);
    EXPECT_EQ(header.has_call(), header.seq() == 1);
    for (const auto& record : header.records())
      members += static_cast<char>('a' + record.owner().member());
    bytes += payload;
    stream.Ack(header.seq());
  };
  served_.Start();
  PutStream stream(served_.client.get());
  for (uint32_t n = 0; n < 26; ++n) ASSERT_TRUE(Put(stream, n).ok());

  EXPECT_TRUE(stream.Flush().ok());
  for (uint32_t n = 0; n < 26; ++n) {
    const auto [member, outcome] = outcomes_.Pop();
    EXPECT_EQ(member, n);
    EXPECT_TRUE(outcome.status.ok());
  }

  std::lock_guard lock(mu);
  EXPECT_EQ(members, "abcdefghijklmnopqrstuvwxyz");
  EXPECT_EQ(bytes.substr(0, 12), "aaaabbbbcccc");
}

TEST_F(PutStreamTest, ARecordThatFailsFailsNoOther) {
  served_.queue.on_put = [&](FakeQueue::PutStreamEnd& stream, const PutHeader& header,
                             const std::string&) {
    std::vector<queue::v1::Failed> failed;
    for (int r = 0; r < header.records_size(); ++r) {
      if (header.records(r).owner().member() != 1) continue;
      queue::v1::Failed& one = failed.emplace_back();
      one.set_record(static_cast<uint32_t>(r));
      one.set_code(static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition));
      one.set_reason("NOT_YET");
      one.set_watermark(12);
    }
    stream.Ack(header.seq(), failed);
  };
  served_.Start();
  PutStream stream(served_.client.get());
  for (uint32_t n = 0; n < 3; ++n) ASSERT_TRUE(Put(stream, n).ok());

  EXPECT_TRUE(outcomes_.Pop().second.status.ok());
  const PutOutcome failed = outcomes_.Pop().second;
  EXPECT_EQ(failed.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(failed.status), "NOT_YET");
  EXPECT_EQ(failed.watermark, 12u);
  EXPECT_TRUE(outcomes_.Pop().second.status.ok());
}

TEST_F(PutStreamTest, AfterABreakWhatWasNotAcknowledgedIsSentAgain) {
  std::mutex mu;
  std::vector<uint32_t> second;
  served_.queue.on_put = [&](FakeQueue::PutStreamEnd& stream, const PutHeader& header,
                             const std::string& payload) {
    // The first stream breaks after one acknowledgement.
    if (stream.number == 0) {
      if (header.seq() == 1) return stream.Ack(1);
      return stream.End(absl::UnavailableError("restarting"));
    }
    std::lock_guard lock(mu);
    EXPECT_EQ(payload.size(), 4u * static_cast<size_t>(header.records_size()));
    for (const auto& record : header.records()) second.push_back(record.owner().member());
    stream.Ack(header.seq());
  };
  served_.Start();
  PutStream stream(served_.client.get());

  ASSERT_TRUE(Put(stream, 0).ok());
  ASSERT_TRUE(stream.Flush().ok());

  for (uint32_t n = 1; n < 5; ++n) ASSERT_TRUE(Put(stream, n).ok());
  ASSERT_TRUE(stream.Flush().ok());

  std::lock_guard lock(mu);
  EXPECT_THAT(second, testing::ElementsAre(1, 2, 3, 4));
}

TEST_F(PutStreamTest, NoMoreThanTheWindowIsUnacknowledged) {
  Handed<FakeQueue::PutStreamEnd*> arrived;
  std::atomic<int> unacknowledged{0};
  served_.queue.on_put = [&](FakeQueue::PutStreamEnd& stream, const PutHeader&,
                             const std::string&) {
    EXPECT_LE(++unacknowledged, 2);
    arrived.Push(&stream);
  };
  served_.Start();
  PutStream stream(served_.client.get(), {.window_bytes = 2 << 20, .buffer_bytes = 16 << 20});
  for (uint32_t n = 0; n < 12; ++n) ASSERT_TRUE(Put(stream, n, 1 << 20).ok());

  // Two messages of 1 MiB fill the window, so the second comes before any acknowledgement.
  FakeQueue::PutStreamEnd* end = arrived.Pop();
  for (uint64_t seq = 1; seq <= 12; ++seq) {
    if (seq < 12) end = arrived.Pop();
    --unacknowledged;
    end->Ack(seq);
  }

  EXPECT_TRUE(stream.Flush().ok());
}

TEST_F(PutStreamTest, AFullBufferRefusesWithoutTaking) {
  // This queue never acknowledges.
  served_.queue.on_put = [](FakeQueue::PutStreamEnd&, const PutHeader&, const std::string&) {};
  served_.Start();
  PutStream stream(served_.client.get(), {.buffer_bytes = 1 << 20});
  ASSERT_TRUE(Put(stream, 0, 900 << 10).ok());
  const absl::Status status = Put(stream, 1, 900 << 10);

  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), "BUFFER_FULL");
  EXPECT_EQ(stream.Flush(absl::Milliseconds(1)).code(), absl::StatusCode::kDeadlineExceeded);

  stream.Stop();
  EXPECT_EQ(outcomes_.Pop().second.status.code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(Put(stream, 2).ok());
}

TEST_F(PutStreamTest, AFencedWorkersStreamEndsForGood) {
  served_.queue.on_put = [](FakeQueue::PutStreamEnd& stream, const PutHeader&, const std::string&) {
    stream.End(Error(absl::StatusCode::kAborted, "FENCED", "incarnation 3 < 4"));
  };
  served_.Start();
  PutStream stream(served_.client.get());

  ASSERT_TRUE(Put(stream, 0).ok());
  EXPECT_EQ(ReasonOf(outcomes_.Pop().second.status), "FENCED");
  EXPECT_EQ(ReasonOf(stream.Flush()), "FENCED");
  EXPECT_EQ(ReasonOf(Put(stream, 1)), "FENCED");
}

}  // namespace
}  // namespace sluice
