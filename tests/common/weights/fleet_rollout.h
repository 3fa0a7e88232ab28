#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/checkpoint/tensor_set.h"
#include "common/rpc/caller.h"
#include "common/rpc/server.h"
#include "common/weights/file_transport.h"
#include "common/weights/relay.h"
#include "common/weights/service.h"
#include "common/weights/subscriber.h"
#include "common/weights/weight_delta.h"

namespace sluice {

inline constexpr char kFleetJob[] = "00112233445566778899aabbccddeeff";
inline constexpr absl::Duration kFleetWithin = absl::Seconds(60);

// How a rollout gets versions.
struct Ways {
  bool shared_memory = false;
  std::string folder = "";       // Empty: none.
  std::string ucx_devices = "";  // Empty: no UCX.
  FanOut fan_out = FanOut::kStar;
  HolderLimits limits = {.silent = absl::Seconds(20)};
  std::optional<BroadcastOptions> broadcast;
  std::function<bool()> has_room;  // See WeightSubscriber::Options.
};

// A rollout of a fleet: a real server, relay and subscriber. It applies what it is given, as an
// engine does. Its subscriber is made later than its server, as that of one that joins late.
class FleetRollout {
 public:
  // `instead` serves in the place of WeightsService, if it is not null.
  FleetRollout(std::string id, const rpc::CallerTable* callers,
               std::shared_ptr<WeightRelay> relay = std::make_shared<WeightRelay>(),
               std::unique_ptr<grpc::Service> instead = nullptr)
      : id_(std::move(id)),
        relay_(std::move(relay)),
        weights_(callers),
        instead_(std::move(instead)) {
    weights_.SetRelay(kFleetJob, relay_, nullptr);
    grpc::Service* const services[] = {instead_ != nullptr ? instead_.get() : weights_.service()};
    server_ = *rpc::Server::Start({}, services);
  }
  virtual ~FleetRollout() {
    Leave();
    weights_.Shutdown();
    server_->Drain(absl::Seconds(5));
  }
  void OfferUcx(const std::string& devices) { weights_.OfferUcx(devices); }
  void ShareMemory() { ASSERT_EQ(weights_.ShareMemory(server_->address()), absl::OkStatus()); }

  void Join(const TensorSet& held, const Ways& ways, const std::string& trainer,
            std::vector<RelayMember> members) {
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
                                      .limits = ways.limits,
                                      .has_room = ways.has_room};
    if (!ways.ucx_devices.empty()) options.ucx_devices = ways.ucx_devices;
    if (!ways.folder.empty())
      options.folder = std::make_shared<FileTransport>(ways.folder, kFleetJob);
    options.on_download_ended = [this](const ObjectFetcher::Stats& stats) {
      MutexLock lock(&mu_);
      for (const auto& [transport, bytes] : stats.used_by_transport)
        counts_.bytes[transport] += bytes;
      counts_.received += stats.bytes;
      counts_.taken += stats.used;
      counts_.left += stats.holders_left;
      if (!stats.last_fault.empty()) counts_.last_fault = stats.last_fault;
      counts_.parent = stats.parent;
      ++counts_.downloads;
      changed_.NotifyAll();
    };
    subscriber_ = std::make_unique<WeightSubscriber>(
        std::move(options), held.specs(), FingerprintOf(held), [this](StagedWeights staged) {
          if (!Take(staged)) {
            subscriber_->OnRefused(staged.version, "it has another fingerprint", "");
            return;
          }
          subscriber_->OnActivated(staged.version, staged.state, absl::ZeroDuration());
          // Those who wait for the version may end the subscriber.
          MutexLock lock(&mu_);
          counts_.states[staged.version] = staged.state;
          activated_.push_back(std::move(staged));
          changed_.NotifyAll();
        });
    subscriber_->SetMembers(std::move(members));
    subscriber_->SetSource(trainer);
  }
  void SetSource(const std::string& trainer) { subscriber_->SetSource(trainer); }
  // Calls `on_first` with the first version that is staged, and refuses it. Call it before Join().
  void RefuseFirst(std::function<void(const StagedWeights&)> on_first) {
    MutexLock lock(&mu_);
    refuse_first_ = std::move(on_first);
  }

  // Waits until as many downloads have ended, well or not. Returns whether they have.
  bool AwaitDownloads(int count) {
    return AwaitUntil(
        [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return counts_.downloads >= count; });
  }
  // Waits until it has activated the version. Returns whether it has.
  bool Await(PolicyVersion version) {
    return AwaitUntil(
        [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return counts_.states.contains(version); });
  }
  std::optional<ObjectFetcher::Wait> wait() const { return subscriber_->wait(); }
  WeightSubscriber& subscriber() { return *subscriber_; }
  // For which rollout's objects it waits; empty: for none.
  std::string WaitsFor() const {
    const auto wait = subscriber_->wait();
    return wait.has_value() ? wait->holder : "";
  }

  struct Counts {
    std::map<PolicyVersion, Fingerprint> states;  // Of all that it has activated.
    std::map<std::string, uint64_t> bytes;        // Used, by transport.
    uint64_t received = 0, taken = 0;             // See ObjectFetcher::Stats.
    int downloads = 0, left = 0;
    int wrong = 0;  // Versions that led to other weights.
    std::string last_fault, parent;
  };
  Counts counts() {
    MutexLock lock(&mu_);
    return counts_;
  }
  // What it has activated, in this order.
  std::vector<StagedWeights> activated() {
    MutexLock lock(&mu_);
    return activated_;
  }
  Fingerprint state() {
    MutexLock lock(&mu_);
    return FingerprintOf(held_);
  }

  const std::string& id() const { return id_; }
  const std::string& address() const { return server_->address(); }
  RelayMember member() const { return {id_, server_->address()}; }
  WeightRelay& relay() { return *relay_; }

 protected:
  // Ends the subscriber.
  void Leave() {
    // Its callbacks use the pointer until it is gone, which reset() would have cleared before.
    delete subscriber_.get();
    (void)subscriber_.release();
  }

 private:
  template <typename F>
  bool AwaitUntil(const F& done) {
    const absl::Duration until = Clock::Real()->Monotonic() + kFleetWithin;
    MutexLock lock(&mu_);
    while (!done()) {
      if (Clock::Real()->Monotonic() > until) return false;
      changed_.WaitFor(&mu_, absl::Milliseconds(100));
    }
    return true;
  }

  // Loads a version as an engine does. Returns false if what it has then is something else; then it
  // keeps what it had.
  bool Take(const StagedWeights& staged) {
    MutexLock lock(&mu_);
    if (refuse_first_) {
      std::exchange(refuse_first_, nullptr)(staged);
      return false;
    }
    TensorSet next = staged.tensors != nullptr ? *staged.tensors : held_;
    const std::vector<DeltaTarget> targets = WholeTensors(&next);
    std::vector<Fingerprint> sums(next.size());
    if (staged.delta != nullptr) {
      for (const SignedChunk& part : staged.delta->chunks)
        part.chunk.Apply(part.sign, targets, absl::MakeSpan(sums));
    }
    if (!(FingerprintOf(next) == staged.state)) {
      ++counts_.wrong;
      return false;
    }
    held_ = std::move(next);
    return true;
  }

  const std::string id_;
  const std::shared_ptr<WeightRelay> relay_;
  WeightsServer weights_;
  const std::unique_ptr<grpc::Service> instead_;
  std::unique_ptr<rpc::Server> server_;
  Mutex mu_;
  CondVar changed_;
  TensorSet held_ ABSL_GUARDED_BY(mu_);
  std::vector<StagedWeights> activated_ ABSL_GUARDED_BY(mu_);
  Counts counts_ ABSL_GUARDED_BY(mu_);
  std::function<void(const StagedWeights&)> refuse_first_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<WeightSubscriber> subscriber_;
};

}  // namespace sluice
