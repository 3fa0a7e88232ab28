#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
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

// A connection to one address, or to the one of several controllers that leads. It is made at the
// first call, and made again after a loss. Thread-safe; share one per peer.
class Channel {
 private:
  struct Leaders;
  struct Place;

 public:
  // Where a call goes.
  struct Peer {
    grpc::Channel* channel = nullptr;  // Lives as long as the Channel.
    std::string address;               // HOST:PORT
    std::string name;  // The address for people; says who named it as the leader, if one did.
    std::shared_ptr<Leaders> leaders;  // Null if there is no other controller.

    // Call it if a call has failed with `why`, so that the next one may go to another controller
    // (leader_search.h). Returns whether it does.
    bool MoveOn(const absl::Status& why) const;
  };

  Channel(std::shared_ptr<grpc::Channel> channel, std::string address, metrics::Registry* metrics);

  // The peer of the next call.
  Peer peer() const;
  // The peer has another address now, HOST:PORT. The next calls go there, and so does the next
  // attempt of a call under way. Only for a channel of Connect(), whose errors these are.
  absl::Status MoveTo(absl::string_view address);
  // The name of that peer, for people.
  std::string address() const { return peer().name; }
  // How many addresses were given.
  int peers() const;
  metrics::Registry* metrics() const { return metrics_; }  // May be null.

 private:
  friend absl::StatusOr<std::shared_ptr<Channel>> Connect(absl::string_view address,
                                                          absl::Span<const Role> peers,
                                                          const struct ConnectOptions& options);
  friend absl::StatusOr<std::shared_ptr<Channel>> ConnectToLeader(
      absl::string_view addresses, const struct ConnectOptions& options);

  metrics::Registry* const metrics_;
  std::shared_ptr<Place> place_;      // Null if there are leaders_.
  std::shared_ptr<Leaders> leaders_;  // Of a channel to several controllers.
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

// Makes a channel to the one of these controllers that leads. `addresses` is HOST:PORT, or several
// of them with commas between. A call that fails goes on to another one; see LeaderSearch.
// Errors as Connect().
absl::StatusOr<std::shared_ptr<Channel>> ConnectToLeader(absl::string_view addresses,
                                                         const ConnectOptions& options = {});

}  // namespace sluice::rpc
