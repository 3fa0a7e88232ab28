#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace grpc {
class Service;
}  // namespace grpc
namespace sluice::metrics {
class Registry;
}  // namespace sluice::metrics

namespace sluice::rpc {
class Channel;

// A listening gRPC server with the house's limits, grpc.health.v1 and counts of its calls. Services
// are of the callback API: a reactor must not block; a call that waits parks in the core and is
// finished from there.
class Server {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";  // HOST:PORT on loopback; port 0: any free one.
    size_t receive_limit = 16 << 20;      // Bytes of one message.
    // Then clients are sent to connect anew; tests use 20 s.
    absl::Duration connection_age = absl::Minutes(30);
    absl::Duration connection_grace = absl::Minutes(5);
    metrics::Registry* metrics = nullptr;  // sluice_rpc_server_*; outlives the server.
  };

  // `services`, at least one, outlive the server.
  // INVALID_ARGUMENT: no such address, or not on loopback. ALREADY_EXISTS (PORT_IN_USE): something
  // else listens there.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Options& options,
                                                       absl::Span<grpc::Service* const> services);
  // Drains for no time.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // HOST:PORT with the port that was bound.
  const std::string& address() const { return address_; }

  // What grpc.health.v1 answers; SERVING from the start.
  void SetServing(bool serving);

  // Says NOT_SERVING, takes no new call, waits up to `deadline` for those that run, then cancels
  // them. Finish parked calls before. Idempotent.
  void Drain(absl::Duration deadline);

  // A channel that needs no socket: for tests.
  std::shared_ptr<Channel> InProcessChannel();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl, std::string address);
  const std::unique_ptr<Impl> impl_;
  const std::string address_;
};

}  // namespace sluice::rpc
