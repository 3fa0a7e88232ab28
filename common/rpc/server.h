#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/rpc/credentials.h"

namespace grpc {
class Service;
}  // namespace grpc
namespace sluice::metrics {
class Registry;
}  // namespace sluice::metrics

namespace sluice::rpc {
class Channel;

// A listening gRPC server with Sluice's limits, the health service grpc.health.v1, and counts of
// its calls. Services use the callback API, where a reactor must not block: a call that waits is
// parked (kept in a list of the service's state machine) and finished from there.
//
// A service's method runs in the trace of its call (server_trace.h).
//
// Thread-safe.
class Server {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";  // HOST:PORT. Port 0: any free port.
    // With null the server has no TLS, works on loopback only, and believes every caller.
    std::shared_ptr<const Credentials> credentials = ProcessCredentials();
    size_t receive_limit = 16 << 20;  // Bytes of one message.
    // Bytes that gRPC may hold for all connections together: what was received and is not read
    // yet. Near the limit it reads less, then drops idle connections, then cancels calls.
    size_t buffer_limit = size_t{1} << 30;
    // Age at which a connection is closed so that the client connects again, and the time that its
    // calls have to end.
    absl::Duration connection_age = absl::Minutes(30);
    absl::Duration connection_grace = absl::Minutes(5);
    // Receives sluice_rpc_server_*. May be null; outlives the server.
    metrics::Registry* metrics = nullptr;
    // If set, every call but those of grpc.health.v1 gets the error that this returns, health
    // reports NOT_SERVING, and `services` is empty. Called from gRPC's threads.
    std::function<absl::Status()> refusal;
  };

  // `services` holds at least one service, unless `options.refusal` is set; they outlive the
  // server.
  // INVALID_ARGUMENT: `options.address` is not an address, or is not on loopback and there are no
  // credentials.
  // ALREADY_EXISTS PORT_IN_USE: another process listens there.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Options& options,
                                                       absl::Span<grpc::Service* const> services);
  // Calls Drain() with no time to wait.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // HOST:PORT with the actual port.
  const std::string& address() const { return address_; }

  // Sets what grpc.health.v1 answers. It is SERVING from the start.
  void SetServing(bool serving);

  // Reports NOT_SERVING, accepts no new calls, waits up to `deadline` for the running ones and then
  // cancels them. The caller should finish parked calls first, because they would use up the whole
  // time. Idempotent.
  void Drain(absl::Duration deadline);

  // A channel without a socket, for tests.
  std::shared_ptr<Channel> InProcessChannel();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl, std::string address);
  const std::unique_ptr<Impl> impl_;
  const std::string address_;
};

}  // namespace sluice::rpc
