#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/secret.h"

namespace sluice::run_code {

struct HttpRequest {
  std::string method, path, body;
};
struct HttpAnswer {
  int status = 200;
  std::string body;            // JSON.
  absl::Duration retry_after;  // 0: no header Retry-After.
};

// Serves calls that block, over HTTP/1.1, with or without TLS: a thread for each connection.
// Requests without the key, above 16 KiB of headers or kMostRequest bytes, or slower than a minute
// are refused.
class HttpServer {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";  // IP:PORT or localhost:PORT; port 0: any free one.
    Secret key;                           // Empty: none is needed.
    std::string cert, cert_key;           // PEM files; if empty, no TLS.
    size_t most_connections = 256;        // Others are closed at once.
  };
  // `answer` is called from the threads of the connections.
  // FAILED_PRECONDITION: the address is not on loopback, and the key or TLS is missing.
  // INVALID_ARGUMENT: the address is wrong, or certificate or key cannot be used.
  // ALREADY_EXISTS PORT_IN_USE: the port is in use.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      Options options, std::function<HttpAnswer(const HttpRequest&)> answer);
  ~HttpServer();  // Calls Stop().

  const std::string& address() const;  // With the port that was bound.

  // Accepts no more, closes the connections, and waits for calls that have begun. Idempotent.
  void Stop();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::run_code
