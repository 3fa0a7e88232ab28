#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/redis/endpoint.h"

typedef struct ssl_st SSL;
typedef struct ssl_ctx_st SSL_CTX;

namespace sluice::redis {

// A TCP connection to an endpoint, inside TLS if the endpoint says so. Deadlines are moments of
// Clock::Real()->Monotonic(). To resolve a host name may take longer than the deadline, because the
// resolver has a limit of its own.
//
// Each error is UNAVAILABLE and says why: the peer is gone or does not answer in time. After an
// error the socket is of no use. FAILED_PRECONDITION is returned by Connect() alone.
//
// hiredis could do this for TCP, but its version in Debian 12 has no TLS, and its time limit is one
// for each read, not for a whole call.
//
// Not thread-safe, except Shutdown().
class Socket {
 public:
  Socket() = default;
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // Call it once. With TLS it checks that an authority of the endpoint's CA file has signed the
  // server's certificate, and that the certificate is valid now and for the endpoint's host.
  // FAILED_PRECONDITION BAD_CERTIFICATE: it is not; the message says why.
  // FAILED_PRECONDITION BAD_PEM: the CA file holds no certificate.
  absl::Status Connect(const Endpoint& endpoint, absl::Duration deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // Sends all of `bytes`.
  absl::Status Write(absl::string_view bytes, absl::Duration deadline);
  // Waits for at least one byte and returns how many were read, at most `size`.
  absl::StatusOr<size_t> Read(char* bytes, size_t size, absl::Duration deadline);

  // Makes the calls that are under way, and all later ones, fail at once. May be called from any
  // thread.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status OpenTcp(const Endpoint& endpoint, absl::Duration deadline) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status StartTls(const Endpoint& endpoint, absl::Duration deadline);
  // Waits until the socket is ready for what `ssl_result`, a failed result of SSL_read() and the
  // like, asks for.
  absl::Status AwaitTls(int ssl_result, absl::Duration deadline);

  Mutex mu_;  // Held while fd_ is opened or closed, never during a wait.
  // -1 without a connection. Only the user's thread writes it, under mu_, and reads it without.
  int fd_ = -1;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  SSL_CTX* tls_context_ = nullptr;
  SSL* tls_ = nullptr;  // Null without TLS.
};

}  // namespace sluice::redis
