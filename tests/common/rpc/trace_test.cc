#include "common/base/trace.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/rpc/client.h"
#include "common/rpc/server.h"
#include "common/rpc/server_stream.h"
#include "common/rpc/stream.h"
#include "sluice/queue/v1/queue.grpc.pb.h"

namespace sluice::rpc {
namespace {

// Remembers the trace of each call. Stats calls `next`, if there is one, as a daemon that calls
// another one while it handles a call.
class TracedQueue : public queue::v1::QueueService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context,
                                  const queue::v1::StatsRequest*,
                                  queue::v1::StatsResponse*) override {
    Note();
    if (next != nullptr) {
      queue::v1::StatsResponse response;
      EXPECT_TRUE(Call(*next, queue::v1::StatsRequest(), &response).ok());
    }
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerWriteReactor<queue::v1::WatchResponse>* Watch(
      grpc::CallbackServerContext*, const queue::v1::WatchRequest*) override {
    Note();
    auto stream = MakeStream<WriteStream<queue::v1::WatchResponse>>();
    stream->End(absl::OkStatus());
    return stream.get();
  }

  std::vector<std::string> seen() {
    MutexLock lock(&mu_);
    return seen_;
  }

  const Channel* next = nullptr;

 private:
  void Note() {
    MutexLock lock(&mu_);
    seen_.push_back(CurrentTrace().id);
  }

  Mutex mu_;
  std::vector<std::string> seen_ ABSL_GUARDED_BY(mu_);
};

class RpcTraceTest : public testing::Test {
 protected:
  RpcTraceTest() {
    grpc::Service* const services[] = {&queue_};
    server_ = *Server::Start({}, services);
    channel_ = *Connect(server_->address(), {Role::kQueue});
  }

  void CallStats() {
    queue::v1::StatsResponse response;
    EXPECT_TRUE(Call(*channel_, queue::v1::StatsRequest(), &response).ok());
  }

  // Calls with these headers and no others, as a client that is not ours.
  void CallStatsWith(const std::vector<std::string>& headers) {
    const auto stub = queue::v1::QueueService::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    for (const std::string& header : headers) context.AddMetadata(kTraceHeader, header);
    queue::v1::StatsResponse response;
    EXPECT_TRUE(stub->Stats(&context, queue::v1::StatsRequest(), &response).ok());
  }

  TracedQueue queue_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<Channel> channel_;
};

TEST_F(RpcTraceTest, ACallAndAStreamCarryTheTraceOfTheThreadThatMakesThem) {
  const Trace trace = MakeTrace();
  {
    const TraceScope scope(trace);
    CallStats();
    ClientStream stream(*channel_, *queue::v1::WatchRequest::descriptor());
    stream.Write(queue::v1::WatchRequest());
    stream.WritesDone();
    EXPECT_TRUE(stream.Finish().ok());
  }
  EXPECT_EQ(queue_.seen(), (std::vector<std::string>{trace.id, trace.id}));
  EXPECT_TRUE(CurrentTrace().empty());
}

TEST_F(RpcTraceTest, ACallThatIsMadeWhileAnotherIsHandledCarriesItsTrace) {
  TracedQueue first;
  first.next = channel_.get();
  grpc::Service* const services[] = {&first};
  const auto server = *Server::Start({}, services);
  const auto channel = *Connect(server->address(), {Role::kQueue});

  queue::v1::StatsResponse response;
  ASSERT_TRUE(Call(*channel, queue::v1::StatsRequest(), &response).ok());
  ASSERT_EQ(first.seen().size(), 1u);
  EXPECT_EQ(first.seen()[0].size(), 32u) << "a fresh one, as the caller has none";
  EXPECT_EQ(queue_.seen(), first.seen());
}

TEST_F(RpcTraceTest, AHeaderOfAnyClientCountsIfItIsWellFormed) {
  CallStatsWith({"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"});
  EXPECT_EQ(queue_.seen(), std::vector<std::string>{"4bf92f3577b34da6a3ce929d0e0e4736"});
}

TEST_F(RpcTraceTest, AMissingMalformedOrDoubledHeaderIsReplacedByAFreshTrace) {
  const std::string valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  CallStatsWith({});
  CallStatsWith({"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"});
  CallStatsWith({"00-00000000000000000000000000000000-00f067aa0ba902b7-01"});
  CallStatsWith({std::string(4000, 'a')});
  CallStatsWith({valid, valid});
  const std::vector<std::string> seen = queue_.seen();
  ASSERT_EQ(seen.size(), 5u);
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i].size(), 32u);
    EXPECT_NE(seen[i], "4bf92f3577b34da6a3ce929d0e0e4736");
    for (size_t j = 0; j < i; ++j) EXPECT_NE(seen[i], seen[j]);
  }
}

}  // namespace
}  // namespace sluice::rpc
