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

// A connection to one address. It is made at the first call, and made again after a loss.
// Thread-safe; share one per peer.
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

// Makes a channel to `address` (HOST:PORT), without connecting yet. `metrics` may be null; it
// outlives the channel and receives the metrics sluice_rpc_client_*.
// INVALID_ARGUMENT: `address` is not HOST:PORT, or not on loopback. Other addresses need TLS, which
// is not built yet.
absl::StatusOr<std::shared_ptr<Channel>> Connect(absl::string_view address,
                                                 metrics::Registry* metrics = nullptr);

// OK: `address` is HOST:PORT with a loopback host (127.x.x.x, ::1 in brackets, or localhost) and a
// port from 0 to 65535.
// INVALID_ARGUMENT BAD_ADDRESS: it is not HOST:PORT.
// INVALID_ARGUMENT NOT_LOOPBACK: it is another host.
absl::Status CheckLoopback(absl::string_view address);

}  // namespace sluice::rpc
