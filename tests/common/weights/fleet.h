#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/id.h"
#include "common/checkpoint/tensor_set.h"
#include "common/collective/c10d_collective.h"
#include "common/collective/rendezvous_server.h"
#include "common/rpc/caller.h"
#include "common/rpc/server.h"
#include "common/testing/data.h"
#include "common/weights/broadcast_server.h"
#include "common/weights/publisher.h"
#include "common/weights/relay_chain.h"
#include "common/weights/service.h"
#include "common/weights/weight_mirror.h"
#include "tests/common/weights/fleet_rollout.h"
#include "tests/common/weights/random_weights.h"

// Fleets of one trainer and three rollouts: real servers, sockets, files and subscribers.
namespace sluice {

class FleetTest : public testing::Test {
 protected:
  FleetTest() : rendezvous_(&callers_), trainer_(&callers_) {
    std::signal(SIGPIPE, SIG_IGN);  // See JoinC10d().
    std::vector<rpc::CallerTable::Worker> workers;
    std::vector<RelayMember> order;
    for (const char* id : {"rollout-0", "rollout-1", "rollout-2"}) {
      workers.push_back({id, rpc::Role::kRollout, 1});
      order.push_back({id, ""});
    }
    callers_.SetJob(kFleetJob, workers);
    trainer_.SetPublisher(kFleetJob, publisher_);
    auto broadcasts = std::make_unique<BroadcastServer>(kBroadcasts, &rendezvous_);
    broadcasts_ = broadcasts.get();
    trainer_.SetBroadcasts(std::move(broadcasts));
    grpc::Service* const services[] = {trainer_.service(), rendezvous_.service()};
    server_ = *rpc::Server::Start({}, services);
    for (const RelayMember& member :
         SortIntoChain(std::move(order), absl::StrCat(kFleetJob, " policy")))
      rollouts_.push_back(std::make_unique<FleetRollout>(member.id, &callers_));
  }
  ~FleetTest() override {
    rollouts_.clear();
    KillTrainer();
  }
  void KillTrainer() {
    if (std::exchange(trainer_dead_, true)) return;
    trainer_.Shutdown();
    server_->Drain(absl::ZeroDuration());
  }
  void ShareTrainersMemory() {
    ASSERT_EQ(trainer_.ShareMemory(server_->address()), absl::OkStatus());
  }

  // The rollouts are numbered by their places in the chain.
  FleetRollout& rollout(size_t i) { return *rollouts_[i]; }
  void Join(size_t i, const Ways& ways) {
    std::vector<RelayMember> members;
    for (const auto& rollout : rollouts_) members.push_back(rollout->member());
    rollout(i).Join(initial_, ways, trainer_dead_ ? "" : server_->address(), members);
  }
  // Waits until as many rollouts hear what the trainer announces.
  void AwaitListeners(size_t count) {
    const absl::Duration until = Clock::Real()->Monotonic() + kFleetWithin;
    while (publisher_->listeners().size() < count && Clock::Real()->Monotonic() < until)
      Clock::Real()->Sleep(absl::Milliseconds(1));
    ASSERT_EQ(publisher_->listeners().size(), count);
  }
  // Waits until the trainer has heard that the rollout has the version.
  void AwaitReport(const std::string& rollout, PolicyVersion version) {
    const absl::Duration until = Clock::Real()->Monotonic() + kFleetWithin;
    while (true) {
      for (const ReplicaState& replica : publisher_->replicas())
        if (replica.worker == rollout && replica.version == version && replica.phase == "ACTIVE")
          return;
      ASSERT_LT(Clock::Real()->Monotonic(), until) << rollout;
      Clock::Real()->Sleep(absl::Milliseconds(1));
    }
  }
  // Publishes five versions, the third of them whole, and awaits each at the rollouts.
  PublishedVersion PublishSome(const std::vector<size_t>& at) {
    PublishedVersion last;
    TensorSet weights = initial_;
    for (int64_t v = 1; v <= 5; ++v) {
      if (v == 3) weights = RandomWeights(77);
      else
        for (size_t i = 0; i < 500; ++i) weights.as<float>(0)[i * 71] += 0.25f;
      last = *publisher_->Publish(weights, {1, v}, "");
      for (const size_t i : at) EXPECT_TRUE(rollout(i).Await(last.version)) << i;
    }
    return last;
  }

  const TensorSet initial_ = RandomWeights(1);
  const std::string folder_ = testing_data::TempPath("fleet-" + ToHex(RandomId16()));
  // Small buckets, and time enough on a slow machine.
  static inline const BroadcastServer::Options kBroadcasts = {
      .join = JoinC10d, .host = "127.0.0.1", .bucket_bytes = 10'000, .timeout = absl::Seconds(60)};
  rpc::CallerTable callers_;
  RendezvousServer rendezvous_;
  BroadcastServer* broadcasts_ = nullptr;  // That of trainer_.
  WeightsServer trainer_;
  WeightMirror mirror_{{}, WeightFolderWriter(folder_, kFleetJob, 1)};
  const std::shared_ptr<WeightPublisher> publisher_ = std::make_shared<WeightPublisher>(
      WeightPublisher::Options{.job = kFleetJob,
                               .chunk_target_bytes = 4096,
                               .on_stored = [this] { mirror_.Write(*publisher_); }},
      Clock::Real());
  std::unique_ptr<rpc::Server> server_;
  bool trainer_dead_ = false;
  std::vector<std::unique_ptr<FleetRollout>> rollouts_;
};

}  // namespace sluice
