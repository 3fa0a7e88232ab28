#include "common/rpc/stream.h"

#include <gtest/gtest.h>

#include "common/base/status.h"
#include "common/rpc/buffer.h"
#include "common/rpc/server.h"
#include "common/rpc/server_stream.h"
#include "sluice/queue/v1/queue.grpc.pb.h"

namespace sluice::rpc {
namespace {

using grpc::ByteBuffer;
using Service = queue::v1::QueueService;
using Base = Service::WithRawCallbackMethod_Put<
    Service::WithRawCallbackMethod_Get<Service::WithCallbackMethod_Watch<Service::Service>>>;

// Acknowledges Put with the size of the payload, answers Get with the request as payload, and
// leaves Watch open.
class EchoQueue : public Base {
 public:
  grpc::ServerBidiReactor<ByteBuffer, ByteBuffer>* Put(grpc::CallbackServerContext*) override {
    class Stream : public BidiStream<ByteBuffer, ByteBuffer> {
      void OnMessage(ByteBuffer& buffer) override {
        Frame frame;
        queue::v1::PutHeader header;
        absl::Status status = DecodeFrame(buffer, &frame);
        if (status.ok()) status = frame.ParseHeader(&header);
        if (!status.ok()) return End(status);
        queue::v1::PutAck ack;
        ack.set_seq(header.seq());
        ack.add_failed()->set_watermark(frame.payload_bytes());
        Send(ToBuffer(ack));
      }
    };

    auto stream = MakeStream<Stream>();
    stream->StartReading();
    return stream.get();
  }

  grpc::ServerWriteReactor<ByteBuffer>* Get(grpc::CallbackServerContext*,
                                            const ByteBuffer* bytes) override {
    auto stream = MakeStream<WriteStream<ByteBuffer>>();
    ByteBuffer copy = *bytes;
    queue::v1::GetRequest request;
    EXPECT_TRUE(FromBuffer(&copy, &request).ok());

    for (const common::v1::Want& want : request.wants()) {
      const PayloadSlice slices[] = {{want.names(0), nullptr}};
      stream->Send(*EncodeFrame(queue::v1::GetHeader(), slices));
    }

    stream->End(request.lease().empty()
                    ? Error(absl::StatusCode::kAborted, "LEASE_LOST", "no lease")
                    : absl::OkStatus());
    return stream.get();
  }

  grpc::ServerWriteReactor<queue::v1::WatchResponse>* Watch(
      grpc::CallbackServerContext*, const queue::v1::WatchRequest*) override {
    auto stream = MakeStream<WriteStream<queue::v1::WatchResponse>>();
    queue::v1::WatchResponse first;
    first.set_version(3);
    stream->Send(first);
    return stream.get();
  }
};

class StreamTest : public testing::Test {
 protected:
  StreamTest() {
    grpc::Service* const services[] = {&queue_};
    server_ = *Server::Start({}, services);
    channel_ = *Connect(server_->address(), {Role::kQueue});
  }

  EchoQueue queue_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<Channel> channel_;
};

TEST_F(StreamTest, FramesGoUpAndAcksComeDownInOrder) {
  ClientStream stream(*channel_, *queue::v1::PutMessage::descriptor());
  auto owner = std::make_shared<const std::string>(1 << 20, 'x');
  for (uint64_t seq = 1; seq <= 20; ++seq) {
    queue::v1::PutHeader header;
    header.set_seq(seq);
    const PayloadSlice slices[] = {{*owner, owner}, {"tail", nullptr}};
    ASSERT_TRUE(stream.WriteFrame(header, slices).ok());
  }

  stream.WritesDone();
  queue::v1::PutAck ack;
  for (uint64_t seq = 1; seq <= 20; ++seq) {
    ASSERT_TRUE(stream.Read(&ack));
    EXPECT_EQ(ack.seq(), seq);
    EXPECT_EQ(ack.failed(0).watermark(), (1u << 20) + 4);
  }

  EXPECT_FALSE(stream.Read(&ack));
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(StreamTest, FramesComeDownBeforeTheErrorThatEndsTheCall) {
  ClientStream stream(*channel_, *queue::v1::GetRequest::descriptor());
  queue::v1::GetRequest request;
  for (const char* name : {"tokens", "logprobs"}) request.add_wants()->add_names(name);
  ASSERT_TRUE(stream.Write(request));
  stream.WritesDone();

  Frame frame;
  ASSERT_TRUE(stream.ReadFrame(&frame));
  EXPECT_EQ(frame.payload()[0], "tokens");
  ASSERT_TRUE(stream.ReadFrame(&frame));
  EXPECT_EQ(frame.payload()[0], "logprobs");
  EXPECT_FALSE(stream.ReadFrame(&frame));

  const absl::Status status = stream.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(status), "LEASE_LOST");
}

TEST_F(StreamTest, CancelEndsAParkedRead) {
  Cancel cancel;
  ClientStream stream(*channel_, *queue::v1::WatchRequest::descriptor(), &cancel);
  ASSERT_TRUE(stream.Write(queue::v1::WatchRequest()));
  stream.WritesDone();

  queue::v1::WatchResponse change;
  ASSERT_TRUE(stream.Read(&change));
  EXPECT_EQ(change.version(), 3);

  cancel.Trigger();
  EXPECT_FALSE(stream.Read(&change));
  EXPECT_EQ(stream.Finish().code(), absl::StatusCode::kCancelled);
}

TEST_F(StreamTest, AServerThatDrainsEndsOpenStreams) {
  ClientStream stream(*channel_, *queue::v1::WatchRequest::descriptor());
  ASSERT_TRUE(stream.Write(queue::v1::WatchRequest()));
  queue::v1::WatchResponse change;
  ASSERT_TRUE(stream.Read(&change));
  server_->Drain(absl::ZeroDuration());

  EXPECT_FALSE(stream.Read(&change));
  EXPECT_FALSE(stream.Finish().ok());
}

TEST_F(StreamTest, AStreamThatNobodyServesSaysSo) {
  server_->Drain(absl::ZeroDuration());
  ClientStream stream(*channel_, *queue::v1::WatchRequest::descriptor());
  (void)stream.Write(queue::v1::WatchRequest());
  queue::v1::WatchResponse change;
  EXPECT_FALSE(stream.Read(&change));
  EXPECT_EQ(stream.Finish().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace sluice::rpc
