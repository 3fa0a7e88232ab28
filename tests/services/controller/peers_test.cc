#include "services/controller/peers.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/rpc/server.h"
#include "sluice/reward/v1/reward.grpc.pb.h"
#include "tests/common/handed.h"

namespace sluice::controller {
namespace {

// Answers Describe at once, and Reload when the test ends.
class SlowRewards final : public reward::v1::RewardService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const reward::v1::DescribeRequest*,
                                     reward::v1::DescribeResponse*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* Reload(grpc::CallbackServerContext* context,
                                   const reward::v1::ReloadRequest*,
                                   reward::v1::ReloadResponse*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    MutexLock lock(&mu_);
    held_.push_back(reactor);
    return reactor;
  }
  void FinishAll() {
    MutexLock lock(&mu_);
    for (grpc::ServerUnaryReactor* const reactor : held_) reactor->Finish(grpc::Status::OK);
    held_.clear();
  }

 private:
  Mutex mu_;
  std::vector<grpc::ServerUnaryReactor*> held_ ABSL_GUARDED_BY(mu_);
};

TEST(PeersTest, CallsThatTakeLongHoldUpNoOthers) {
  SlowRewards rewards;
  grpc::Service* services[] = {&rewards};
  const std::unique_ptr<rpc::Server> server = *rpc::Server::Start({}, services);
  Peers peers("controller");

  Handed<absl::Status> reloaded, described;
  constexpr int kReloads = 100;
  for (int i = 0; i < kReloads; ++i) {
    const auto request = std::make_shared<reward::v1::ReloadRequest>();
    peers.FillCall("job", request->mutable_call());
    peers.CallDaemon(server->address(), request, std::make_shared<reward::v1::ReloadResponse>(),
                     [&](const absl::Status& status) { reloaded.Push(status); });
  }
  const auto request = std::make_shared<reward::v1::DescribeRequest>();
  peers.FillCall("job", request->mutable_call());
  peers.CallDaemon(server->address(), request, std::make_shared<reward::v1::DescribeResponse>(),
                   [&](const absl::Status& status) { described.Push(status); });
  EXPECT_EQ(described.Pop(), absl::OkStatus());

  peers.Stop();
  for (int i = 0; i < kReloads; ++i) EXPECT_TRUE(absl::IsCancelled(reloaded.Pop()));
  rewards.FinishAll();
}

}  // namespace
}  // namespace sluice::controller
