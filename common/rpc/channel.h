#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/rpc/credentials.h"

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

struct ConnectOptions {
  // Outlives the channel and receives the metrics sluice_rpc_client_*. Null: process_metrics.h.
  metrics::Registry* metrics = nullptr;
  // With null the channel has no TLS, and works on loopback only.
  std::shared_ptr<const Credentials> credentials = ProcessCredentials();
};

// Makes a channel to `address` (HOST:PORT), without connecting yet. With TLS, only a server whose
// certificate names one of the roles `peers` is accepted.
// INVALID_ARGUMENT BAD_ADDRESS: `address` is not HOST:PORT.
// INVALID_ARGUMENT NOT_LOOPBACK: it is not on loopback, and there are no credentials.
absl::StatusOr<std::shared_ptr<Channel>> Connect(absl::string_view address,
                                                 absl::Span<const Role> peers,
                                                 const ConnectOptions& options = {});

}  // namespace sluice::rpc
