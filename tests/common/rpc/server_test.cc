#include "common/rpc/server.h"

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "absl/strings/numbers.h"
#include "common/base/status.h"
#include "common/rpc/cancel.h"
#include "common/rpc/client.h"
#include "common/rpc/status.h"
#include "sluice/queue/v1/queue.grpc.pb.h"

namespace sluice::rpc {
namespace {

// Holds a Stats call, which the test takes and finishes. Serves only one call.
class HeldQueue : public queue::v1::QueueService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context,
                                  const queue::v1::StatsRequest*,
                                  queue::v1::StatsResponse*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    held_.set_value(reactor);
    return reactor;
  }
  grpc::ServerUnaryReactor* Take() { return held_.get_future().get(); }

 private:
  std::promise<grpc::ServerUnaryReactor*> held_;
};

// Whether a TCP connection to "127.0.0.1:PORT" is accepted.
bool AcceptsConnections(const std::string& address) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  sockaddr_in peer = {};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(port));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);

  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool accepted = connect(fd, reinterpret_cast<sockaddr*>(&peer), sizeof(peer)) == 0;
  close(fd);
  return accepted;
}

TEST(ServerTest, APortInUseIsNamed) {
  HeldQueue queue;
  grpc::Service* const services[] = {&queue};
  auto first = Server::Start({}, services);
  ASSERT_TRUE(first.ok());
  const auto second = Server::Start({.address = (*first)->address()}, services);

  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReasonOf(second.status()), "PORT_IN_USE");
  EXPECT_NE(std::string(second.status().message()).find((*first)->address()), std::string::npos);
  EXPECT_NE(DetailOf(second.status()).hint, "");
}

TEST(ServerTest, AnAddressOffLoopbackIsRefused) {
  EXPECT_EQ(ReasonOf(Server::Start({.address = "0.0.0.0:0"}, {}).status()), "NOT_LOOPBACK");
}

TEST(ServerTest, DrainWaitsForCallsThatRun) {
  HeldQueue queue;
  grpc::Service* const services[] = {&queue};
  auto server = Server::Start({}, services);
  ASSERT_TRUE(server.ok());
  const auto channel = *Connect((*server)->address(), {Role::kQueue});
  auto called = std::async(std::launch::async, [&] {
    queue::v1::StatsResponse response;
    return Call(*channel, queue::v1::StatsRequest(), &response);
  });

  // Finishes the call once the drain has begun, which closes the port.
  grpc::ServerUnaryReactor* const reactor = queue.Take();
  std::atomic<bool> finished = false;
  std::thread finisher([&] {
    while (AcceptsConnections((*server)->address())) std::this_thread::yield();
    finished = true;
    reactor->Finish(grpc::Status::OK);
  });
  (*server)->Drain(absl::InfiniteDuration());
  EXPECT_TRUE(finished);
  finisher.join();
  EXPECT_TRUE(called.get().ok());

  queue::v1::StatsResponse response;
  EXPECT_EQ(
      Call(*channel, queue::v1::StatsRequest(), &response, {.deadline = absl::Milliseconds(20)})
          .ok(),
      false);
}

// Never answers. The end of a call triggers `ended`.
class SilentQueue : public queue::v1::QueueService::CallbackService {
 public:
  explicit SilentQueue(Cancel* ended) : ended_(ended) {}
  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext*, const queue::v1::StatsRequest*,
                                  queue::v1::StatsResponse*) override {
    class Silent : public grpc::ServerUnaryReactor {
     public:
      explicit Silent(Cancel* ended) : ended_(ended) {}
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override {
        ended_->Trigger();
        delete this;
      }

     private:
      Cancel* const ended_;
    };
    return new Silent(ended_);
  }

 private:
  Cancel* const ended_;
};

TEST(ServerTest, ACallWithALongDeadlineEndsWithItsConnection) {
  Cancel ended;  // Also ends the attempts to call again.
  SilentQueue queue(&ended);
  grpc::Service* const services[] = {&queue};
  auto server = Server::Start(
      {.connection_age = absl::Milliseconds(20), .connection_grace = absl::Milliseconds(20)},
      services);
  ASSERT_TRUE(server.ok());
  const auto channel = *Connect((*server)->address(), {Role::kQueue});

  queue::v1::StatsResponse response;
  const absl::Status status = Call(*channel, queue::v1::StatsRequest(), &response,
                                   {.deadline = absl::Hours(1), .cancel = &ended});

  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST(ServerTest, AnInProcessChannelNeedsNoSocket) {
  HeldQueue queue;
  grpc::Service* const services[] = {&queue};
  auto server = Server::Start({}, services);
  ASSERT_TRUE(server.ok());
  const auto channel = (*server)->InProcessChannel();
  auto called = std::async(std::launch::async, [&] {
    queue::v1::StatsResponse response;
    return Call(*channel, queue::v1::StatsRequest(), &response);
  });

  queue.Take()->Finish(grpc::Status::OK);
  EXPECT_TRUE(called.get().ok());
}

}  // namespace
}  // namespace sluice::rpc
