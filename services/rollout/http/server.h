#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/rollout/http/api.h"

namespace sluice::rollout::http {

// Serves an Api over HTTP/1.1, with or without TLS. Boost.Beast reads and writes the protocol.
//
// Limits are checked before memory of that size is allocated: 16 KiB of headers, kMaxBody,
// most_bodies over all connections, most_connections. A client that leaves or reads too slowly is
// cut off, and its answers are aborted.
//
// Owns one thread, `http`, on which the Api runs, and `workers` threads for parsing, rendering and
// encoding.
class Server {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";  // IP:PORT or localhost:PORT; port 0: any free one.
    std::string cert, cert_key;           // PEM files; if empty, no TLS.
    int workers = 2;
    size_t most_connections = 4096;  // Others wait until they are accepted.
    // Most bytes of the bodies of all calls that are not answered yet; beyond it calls get 429.
    uint64_t most_bodies = 256 << 20;
    // Most bytes of a stream that its reader has not taken.
    size_t most_behind = 1 << 20;
    // Time for a request's headers, and for a TLS handshake.
    absl::Duration head_time = absl::Seconds(10);
    absl::Duration body_time = absl::Seconds(60);
    absl::Duration idle_time = absl::Seconds(75);  // Between two requests on a connection.
    // The client must take some of the waiting bytes within this time.
    absl::Duration write_time = absl::Seconds(30);
  };

  // Starts a server. post, work, clock and random of `api` are set here; all that it points to
  // outlives the server.
  // FAILED_PRECONDITION: the address is not a loopback address, and keys or TLS are missing.
  // INVALID_ARGUMENT: the address is wrong, or certificate or key cannot be used.
  // ALREADY_EXISTS PORT_IN_USE: the port is in use.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Options& options, Api::Options api);
  ~Server();  // Calls Stop().
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Api& api();
  const std::string& address() const;  // With the port that was bound.

  // Waits until no call is under way and all bytes are sent. Returns false if this takes longer
  // than `timeout`.
  bool AwaitIdle(absl::Duration timeout);
  // Closes all connections and joins the threads. Idempotent.
  void Stop();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::rollout::http
