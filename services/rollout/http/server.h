#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/rollout/http/api.h"

namespace sluice::rollout::http {

// HTTP/1.1, with TLS or without, in front of an Api. Boost.Beast reads and writes the protocol.
//
// Limits hold before anything of their size is allocated: 16 KiB of headers, kMaxBody, most_bodies
// over all connections, most_connections. A client that leaves, or reads too slowly, is cut off and
// what it asked for aborted.
//
// Owns one thread, `http`, where the Api runs, and `workers` for parsing, rendering and encoding.
class Server {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";  // HOST:PORT; port 0: any free one.
    std::string cert, cert_key;           // PEM files; empty: no TLS.
    int workers = 2;
    size_t most_connections = 4096;  // Further ones wait to be accepted.
    // Bytes of bodies being read and parsed; beyond: 429.
    uint64_t most_bodies = 256 << 20;
    // Bytes of a stream that its reader has not taken.
    size_t most_behind = 1 << 20;
    // For a request's headers, and a TLS handshake.
    absl::Duration head_time = absl::Seconds(10);
    absl::Duration body_time = absl::Seconds(60);
    absl::Duration idle_time = absl::Seconds(75);  // Between two requests of a connection.
    // In which the client must take something of what is there for it.
    absl::Duration write_time = absl::Seconds(30);
  };

  // `api`: its post, work, clock and random are filled in here; what it points to outlives the
  // server. FAILED_PRECONDITION: an address off loopback without keys and TLS. INVALID_ARGUMENT: no
  // such address, or a certificate or key that cannot be used. ALREADY_EXISTS: the port is in use.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Options& options, Api::Options api);
  ~Server();  // Stop().
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Api& api();
  const std::string& address() const;  // With the port that was bound.

  // Waits until no call is under way and all that was written is sent; false: not within `timeout`.
  bool AwaitIdle(absl::Duration timeout);
  // Closes all connections and joins the threads. Idempotent.
  void Stop();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::rollout::http
