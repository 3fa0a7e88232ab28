#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace grpc {
class Channel;
}  // namespace grpc
namespace sluice::metrics {
class Registry;
}  // namespace sluice::metrics

namespace sluice::rpc {

// A connection to one address: made at the first call, re-made after a loss. Thread-safe; share one
// per peer.
class Channel {
 public:
  Channel(std::shared_ptr<grpc::Channel> channel, std::string address, metrics::Registry* metrics);

  grpc::Channel* grpc_channel() const { return channel_.get(); }
  const std::string& address() const { return address_; }
  metrics::Registry* metrics() const { return metrics_; }  // May be null.

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::string address_;
  metrics::Registry* const metrics_;
};

// A channel to `address`, HOST:PORT; connects to nothing yet. `metrics`, which may be null,
// outlives it and gets sluice_rpc_client_*.
// INVALID_ARGUMENT: not HOST:PORT, or not on loopback (TLS is needed off loopback, and not built
// yet).
absl::StatusOr<std::shared_ptr<Channel>> Connect(absl::string_view address,
                                                 metrics::Registry* metrics = nullptr);

// OK: `address` is HOST:PORT with a loopback host (127.x.x.x, ::1 in brackets, localhost) and a
// port of 0 to 65535.
absl::Status CheckLoopback(absl::string_view address);

}  // namespace sluice::rpc
