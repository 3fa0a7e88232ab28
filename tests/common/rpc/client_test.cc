#include "common/rpc/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "absl/strings/match.h"
#include "common/base/status.h"
#include "common/metrics/metrics.h"
#include "common/rpc/method.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "sluice/engine/v1/engine.pb.h"
#include "sluice/queue/v1/queue.grpc.pb.h"

namespace sluice::rpc {
namespace {

using queue::v1::ApplyRequest;
using queue::v1::ApplyResponse;

constexpr BackoffOptions kSoon{.first = absl::Microseconds(10), .longest = absl::Microseconds(50)};

// Answers Apply with each of the errors in turn and then with success. Parks Admit until its client
// leaves.
class FakeQueue : public queue::v1::QueueService::CallbackService {
 public:
  explicit FakeQueue(std::vector<absl::Status> errors) : errors_(std::move(errors)) {}
  int applies() const { return applies_; }
  // How much time the last Apply had left when it came.
  absl::Duration time_left() const { return time_left_; }
  std::future<void> parked() { return parked_.get_future(); }

  grpc::ServerUnaryReactor* Apply(grpc::CallbackServerContext* context, const ApplyRequest* request,
                                  ApplyResponse* response) override {
    const size_t n = static_cast<size_t>(applies_++);
    time_left_ = absl::FromChrono(context->deadline()) - absl::Now();
    response->set_version(request->k() + 1);
    auto* reactor = context->DefaultReactor();
    reactor->Finish(n < errors_.size() ? ToGrpcStatus(errors_[n]) : grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* Admit(grpc::CallbackServerContext*, const queue::v1::AdmitRequest*,
                                  queue::v1::AdmitResponse*) override {
    class Parked : public grpc::ServerUnaryReactor {
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override { delete this; }
    };
    parked_.set_value();
    return new Parked;
  }

 private:
  const std::vector<absl::Status> errors_;
  std::atomic<int> applies_{0};
  std::atomic<absl::Duration> time_left_{absl::ZeroDuration()};
  std::promise<void> parked_;
};

class ClientTest : public testing::Test {
 protected:
  void Serve(std::vector<absl::Status> errors) {
    queue_ = std::make_unique<FakeQueue>(std::move(errors));
    grpc::Service* const services[] = {queue_.get()};
    auto server = Server::Start({.metrics = &metrics_}, services);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = *Connect(server_->address(), {Role::kQueue}, {.metrics = &metrics_});
  }
  absl::Status Apply(const CallOptions& options) {
    ApplyRequest request;
    request.set_k(4);
    return Call(*channel_, request, &response_, options);
  }

  metrics::Registry metrics_;
  std::unique_ptr<FakeQueue> queue_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<Channel> channel_;
  ApplyResponse response_;
};

TEST_F(ClientTest, ACallIsAnswered) {
  Serve({});
  ASSERT_TRUE(Apply({}).ok());
  EXPECT_EQ(response_.version(), 5);
}

TEST_F(ClientTest, ADeadlineAboveAnHourIsCutToIt) {
  Serve({});
  for (const absl::Duration wanted : {absl::Hours(24), absl::InfiniteDuration()}) {
    ASSERT_TRUE(Apply({.deadline = wanted}).ok());
    // gRPC sends so long a time in steps of seconds, and rounds it up.
    EXPECT_LE(queue_->time_left(), absl::Minutes(61));
    EXPECT_GT(queue_->time_left(), absl::Minutes(30));
  }
}

TEST_F(ClientTest, UnavailableIsTriedAgainUntilItWorks) {
  Serve({absl::UnavailableError("a"), absl::UnavailableError("b"), absl::DeadlineExceededError("c"),
         absl::CancelledError("the server shuts down")});
  ASSERT_TRUE(Apply({.backoff = kSoon}).ok());
  EXPECT_EQ(queue_->applies(), 5);
  EXPECT_THAT(metrics_.Text(),
              testing::HasSubstr("sluice_rpc_client_retries_total{method=\"QueueService.Apply\","
                                 "reason=\"UNAVAILABLE\"} 2"));
}

TEST_F(ClientTest, OtherErrorsGoUpAtOnceWithTheirDetail) {
  Serve({ErrorWith(absl::StatusCode::kAborted, {.reason = "FENCED", .current = "3"},
                   "incarnation 2 < 3")});
  const absl::Status status = Apply({.backoff = kSoon});

  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ReasonOf(status), "FENCED");
  EXPECT_EQ(DetailOf(status).current, "3");
  EXPECT_THAT(std::string(status.message()),
              testing::MatchesRegex("QueueService.Apply at 127.0.0.1:[0-9]+: incarnation 2 < 3"));
  EXPECT_EQ(queue_->applies(), 1);
}

TEST_F(ClientTest, ARetryInfoBeyondTheDeadlineIsNotWaitedFor) {
  Serve({ErrorWith(absl::StatusCode::kUnavailable,
                   {.reason = "NOT_LISTED", .retry_after = absl::Hours(1)}, "later")});
  const absl::Status status = Apply({.backoff = kSoon});
  EXPECT_EQ(ReasonOf(status), "NOT_LISTED");
  EXPECT_EQ(queue_->applies(), 1);
}

TEST_F(ClientTest, ACallThatIsTriedAgainFollowsAPeerThatHasMoved) {
  Serve({});
  const std::shared_ptr<Channel> channel = channel_;
  server_.reset();
  auto applied = std::async(std::launch::async, [&] {
    ApplyRequest request;
    request.set_k(7);
    ApplyResponse response;
    const absl::Status status =
        Call(*channel, request, &response, {.give_up = absl::InfiniteDuration(), .backoff = kSoon});
    return status.ok() ? response.version() : -1;
  });
  // It has tried at the old address.
  while (!absl::StrContains(metrics_.Text(), "sluice_rpc_client_retries_total"))
    std::this_thread::yield();

  Serve({});
  ASSERT_TRUE(channel->MoveTo(server_->address()).ok());
  EXPECT_EQ(applied.get(), 8);
  EXPECT_EQ(channel->address(), server_->address());
  EXPECT_EQ(ReasonOf(channel->MoveTo("nowhere")), "BAD_ADDRESS");
}

TEST_F(ClientTest, CancelEndsAParkedCallAndALongWait) {
  Serve({ErrorWith(absl::StatusCode::kUnavailable, {.retry_after = absl::Hours(1)}, "later")});
  Cancel cancel;
  auto admitted = std::async(std::launch::async, [&] {
    queue::v1::AdmitResponse response;
    return Call(*channel_, queue::v1::AdmitRequest(), &response, {.cancel = &cancel});
  });

  auto applied = std::async(std::launch::async, [&] {
    return Apply({.give_up = absl::InfiniteDuration(), .cancel = &cancel});
  });
  queue_->parked().wait();
  cancel.Trigger();

  EXPECT_EQ(admitted.get().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(applied.get().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Apply({.cancel = &cancel}).code(), absl::StatusCode::kCancelled);
}

TEST_F(ClientTest, GenerateIsMarkedAsNeverRepeated) {
  EXPECT_EQ(MethodOf(engine::v1::GenerateRequest::descriptor()).repeat, Repeat::kNever);
}

TEST_F(ClientTest, CallsAreCountedByTheServer) {
  Serve({absl::NotFoundError("x")});
  (void)Apply({});
  ASSERT_TRUE(Apply({}).ok());

  // After the drain both calls have been counted.
  server_->Drain(absl::InfiniteDuration());
  const std::string text = metrics_.Text();

  EXPECT_THAT(text, testing::HasSubstr(
                        "sluice_rpc_server_handled_total{code=\"NOT_FOUND\",method=\"Apply\","
                        "service=\"sluice.queue.v1.QueueService\"} 1"));
  EXPECT_THAT(text,
              testing::HasSubstr("sluice_rpc_server_handled_total{code=\"OK\",method=\"Apply\","
                                 "service=\"sluice.queue.v1.QueueService\"} 1"));
  EXPECT_THAT(text,
              testing::HasSubstr("sluice_rpc_server_duration_seconds_count{method=\"Apply\"} 2"));
}

TEST(BackoffTest, WaitsGrowToTheirLimitWithinTheJitter) {
  Backoff backoff(BackoffOptions{});
  double want = 0.05;
  for (int i = 0; i < 20; ++i) {
    // The jitter is 20 % to either side.
    const double wait = absl::ToDoubleSeconds(backoff.Next());
    EXPECT_GE(wait, want * 0.799);
    EXPECT_LE(wait, want * 1.201);
    want = std::min(want * 1.6, 2.0);
  }

  EXPECT_EQ(backoff.Next(absl::Hours(1)), absl::Hours(1));
  backoff.Reset();
  EXPECT_LE(backoff.Next(), absl::Milliseconds(61));
}

TEST(ChannelTest, AddressesOffLoopbackAreRefused) {
  EXPECT_EQ(ReasonOf(Connect("10.0.0.1:7000", {Role::kQueue}).status()), "NOT_LOOPBACK");
  EXPECT_EQ(ReasonOf(Connect("0.0.0.0:7000", {Role::kQueue}).status()), "NOT_LOOPBACK");
  EXPECT_EQ(ReasonOf(Connect("127.evil.example:7000", {Role::kQueue}).status()), "NOT_LOOPBACK");
  EXPECT_EQ(ReasonOf(Connect("127.0.0.1", {Role::kQueue}).status()), "BAD_ADDRESS");
  EXPECT_EQ(ReasonOf(Connect("127.0.0.1:70000", {Role::kQueue}).status()), "BAD_ADDRESS");
  EXPECT_TRUE(Connect("127.0.0.1:7000", {Role::kQueue}).ok());
  EXPECT_TRUE(Connect("localhost:7000", {Role::kQueue}).ok());
  EXPECT_TRUE(Connect("[::1]:7000", {Role::kQueue}).ok());
}

}  // namespace
}  // namespace sluice::rpc
