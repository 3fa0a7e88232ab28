#pragma once

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/id.h"
#include "common/base/mutex.h"
#include "common/checkpoint/tensor_set.h"
#include "common/collective/c10d_collective.h"
#include "common/collective/rendezvous_server.h"
#include "common/rpc/caller.h"
#include "common/rpc/server.h"
#include "common/testing/data.h"
#include "common/weights/broadcast_server.h"
#include "common/weights/file_transport.h"
#include "common/weights/publisher.h"
#include "common/weights/relay.h"
#include "common/weights/service.h"
#include "common/weights/subscriber.h"
#include "common/weights/weight_delta.h"
#include "common/weights/weight_mirror.h"
#include "tests/common/weights/random_weights.h"

// Fleets of one trainer and three rollouts: real servers, sockets, files and subscribers.
namespace sluice {

inline constexpr char kFleetJob[] = "00112233445566778899aabbccddeeff";
inline constexpr absl::Duration kFleetWithin = absl::Seconds(60);

// How a rollout gets versions.
struct Ways {
  bool shared_memory = false, folder = false;
  std::string ucx_devices = "";  // Empty: no UCX.
  FanOut fan_out = FanOut::kStar;
  absl::Duration silent = absl::Seconds(20);
  std::optional<BroadcastOptions> broadcast;
  std::function<bool()> has_room;  // See WeightSubscriber::Options.
};

class FleetTest : public testing::Test {
 protected:
  // A rollout that applies what it is given, as an engine does.
  class Rollout {
   public:
    Rollout(std::string id, const rpc::CallerTable* callers)
        : id_(std::move(id)), relay_(std::make_shared<WeightRelay>()), weights_(callers) {
      weights_.SetRelay(kFleetJob, relay_, nullptr);
      grpc::Service* const services[] = {weights_.service()};
      server_ = *rpc::Server::Start({}, services);
    }
    ~Rollout() {
      // Its callbacks use the pointer until it is gone, which reset() would have cleared before.
      delete subscriber_.get();
      (void)subscriber_.release();
      weights_.Shutdown();
      server_->Drain(absl::Seconds(5));
    }
    void OfferUcx(const std::string& devices) { weights_.OfferUcx(devices); }
    void ShareMemory() { ASSERT_EQ(weights_.ShareMemory(server_->address()), absl::OkStatus()); }

    void Join(const TensorSet& held, const Ways& ways, const std::string& folder,
              const std::string& trainer, std::vector<RelayMember> members) {
      {
        MutexLock lock(&mu_);
        held_ = held;
      }
      WeightSubscriber::Options options{.job = kFleetJob,
                                        .worker = id_,
                                        .incarnation = 1,
                                        .fan_out = ways.fan_out,
                                        .shared_memory = ways.shared_memory,
                                        .broadcast = ways.broadcast,
                                        .relay = relay_,
                                        .limits = {.silent = ways.silent},
                                        .has_room = ways.has_room};
      if (!ways.ucx_devices.empty()) options.ucx_devices = ways.ucx_devices;
      if (ways.folder) options.folder = std::make_shared<FileTransport>(folder, kFleetJob);
      options.on_download_ended = [this](const ObjectFetcher::Stats& stats) {
        MutexLock lock(&mu_);
        for (const auto& [transport, bytes] : stats.used_by_transport) bytes_[transport] += bytes;
        if (!stats.last_fault.empty()) last_fault_ = stats.last_fault;
        parent_ = stats.parent;
        ++downloads_;
        changed_.NotifyAll();
      };
      subscriber_ = std::make_unique<WeightSubscriber>(
          std::move(options), held.specs(), FingerprintOf(held), [this](StagedWeights staged) {
            if (!Take(staged)) {
              subscriber_->OnRefused(staged.version, "it has another fingerprint", "");
              return;
            }
            subscriber_->OnActivated(staged.version, staged.state, absl::ZeroDuration());
            MutexLock lock(&mu_);
            version_ = staged.version;
            taken_.push_back(std::move(staged));
            changed_.NotifyAll();
          });
      subscriber_->SetMembers(std::move(members));
      subscriber_->SetSource(trainer);
    }

    // Waits until it has the version. Returns whether it has.
    bool Await(PolicyVersion version) {
      const absl::Duration until = Clock::Real()->Monotonic() + kFleetWithin;
      MutexLock lock(&mu_);
      while (version_ != version) {
        if (Clock::Real()->Monotonic() > until) return false;
        changed_.WaitFor(&mu_, absl::Milliseconds(100));
      }
      return true;
    }

    // Waits until as many downloads have ended, well or not. Returns whether they have.
    bool AwaitDownloads(int count) {
      const absl::Duration until = Clock::Real()->Monotonic() + kFleetWithin;
      MutexLock lock(&mu_);
      while (downloads_ < count) {
        if (Clock::Real()->Monotonic() > until) return false;
        changed_.WaitFor(&mu_, absl::Milliseconds(100));
      }
      return true;
    }
    WeightSubscriber& subscriber() { return *subscriber_; }

    Fingerprint state() {
      MutexLock lock(&mu_);
      return FingerprintOf(held_);
    }
    std::map<std::string, uint64_t> bytes() {  // By transport.
      MutexLock lock(&mu_);
      return bytes_;
    }
    std::string last_fault() {
      MutexLock lock(&mu_);
      return last_fault_;
    }
    std::vector<StagedWeights> taken() {
      MutexLock lock(&mu_);
      return taken_;
    }
    std::string parent() {
      MutexLock lock(&mu_);
      return parent_;
    }
    RelayMember member() const { return {id_, server_->address()}; }

   private:
    bool Take(const StagedWeights& staged) {
      MutexLock lock(&mu_);
      TensorSet next = staged.tensors != nullptr ? *staged.tensors : held_;
      const std::vector<DeltaTarget> targets = WholeTensors(&next);
      std::vector<Fingerprint> sums(next.size());
      if (staged.delta != nullptr) {
        for (const SignedChunk& part : staged.delta->chunks)
          part.chunk.Apply(part.sign, targets, absl::MakeSpan(sums));
      }
      if (!(FingerprintOf(next) == staged.state)) return false;
      held_ = std::move(next);
      return true;
    }

    const std::string id_;
    const std::shared_ptr<WeightRelay> relay_;
    WeightsServer weights_;
    std::unique_ptr<rpc::Server> server_;
    Mutex mu_;
    CondVar changed_;
    TensorSet held_ ABSL_GUARDED_BY(mu_);
    PolicyVersion version_ ABSL_GUARDED_BY(mu_);
    std::vector<StagedWeights> taken_ ABSL_GUARDED_BY(mu_);  // In the order of their activation.
    std::map<std::string, uint64_t> bytes_ ABSL_GUARDED_BY(mu_);
    std::string last_fault_ ABSL_GUARDED_BY(mu_), parent_ ABSL_GUARDED_BY(mu_);
    int downloads_ ABSL_GUARDED_BY(mu_) = 0;
    std::unique_ptr<WeightSubscriber> subscriber_;
  };

  FleetTest() : rendezvous_(&callers_), trainer_(&callers_) {
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
      rollouts_.push_back(std::make_unique<Rollout>(member.id, &callers_));
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
  Rollout& rollout(size_t i) { return *rollouts_[i]; }
  void Join(size_t i, const Ways& ways) {
    std::vector<RelayMember> members;
    for (const auto& rollout : rollouts_) members.push_back(rollout->member());
    rollout(i).Join(initial_, ways, folder_, trainer_dead_ ? "" : server_->address(), members);
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
  std::vector<std::unique_ptr<Rollout>> rollouts_;
};

}  // namespace sluice
