#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/channel.h"
#include "common/rpc/channel_cache.h"
#include "common/weights/broadcast_transport.h"
#include "common/weights/object_fetcher.h"
#include "common/weights/relay_chain.h"
#include "common/weights/transport.h"

namespace sluice {
class FileTransport;
class UcxMemory;

// Connects to those who have a version, each by the transport that PlanHolders() chooses.
//
// Connect() is for one thread, ChannelTo() for any.
class HolderConnector {
 public:
  struct Options {
    WeightCaller caller;
    // The rest is as in WeightSubscriber::Options.
    bool shared_memory = false;
    std::optional<BroadcastOptions> broadcast;
    std::optional<absl::StatusOr<std::string>> ucx_devices;
    std::shared_ptr<FileTransport> folder;
  };
  explicit HolderConnector(Options options);
  ~HolderConnector();

  // Who is known to have weights.
  struct Known {
    std::shared_ptr<rpc::Channel> trainer;  // Null: it is not known.
    std::string trainer_address;            // Empty: the same.
    std::vector<RelayMember> chain;         // Empty: all comes from the trainer.
  };
  // Returns the holders in the order in which they are asked. `now` is that of `history`.
  std::vector<ObjectFetcher::Holder> Connect(const Known& known, const HolderHistory& history,
                                             absl::Duration now);

  // A channel to a rollout at HOST:PORT.
  absl::StatusOr<std::shared_ptr<rpc::Channel>> ChannelTo(const std::string& address) {
    return channels_.Find(address);
  }

 private:
  // Those that can be called, in their order.
  std::vector<ObjectFetcher::Holder> ListCallable(
      const Known& known, const std::function<bool(const std::string& id)>& is_avoided);
  ObjectFetcher::Holder MakeCaller(const std::string& id,
                                   std::shared_ptr<rpc::Channel> channel) const;

  const Options options_;
  const std::unique_ptr<UcxMemory> ucx_;  // May be null.
  rpc::ChannelCache channels_;            // Those to rollouts.
};

}  // namespace sluice
