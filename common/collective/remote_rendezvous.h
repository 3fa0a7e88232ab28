#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/collective/rendezvous.h"
#include "common/rpc/cancel.h"
#include "common/rpc/channel.h"

namespace sluice {

// The rendezvous that rank 0 serves (RendezvousServer), for the other ranks. Thread-safe.
class RemoteRendezvous : public Rendezvous {
 public:
  struct Options {
    std::string job, worker;  // Who calls.
    int64_t incarnation = 0;
    std::string group;  // Empty: the trainers of the job.
    // How long a call is repeated while rank 0 does not answer, or does not know the caller yet.
    absl::Duration give_up = absl::InfiniteDuration();
    rpc::Cancel* cancel = nullptr;  // Ends all waits; not null, and outlives this.
  };
  RemoteRendezvous(std::shared_ptr<const rpc::Channel> channel, Options options)
      : channel_(std::move(channel)), options_(std::move(options)) {}

  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override;

 private:
  template <typename Request, typename Response>
  absl::Status Call(Request request, Response* response) const;

  const std::shared_ptr<const rpc::Channel> channel_;
  const Options options_;
};

}  // namespace sluice
