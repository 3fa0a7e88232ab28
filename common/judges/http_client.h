#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/secret.h"
#include "common/rpc/cancel.h"

namespace sluice {

struct HttpReply {
  long code = 0;
  std::string body;
  absl::Duration retry_after;  // From the header Retry-After; else 0.
};

// Posts JSON to one address, by libcurl, which verifies certificates, reuses connections and
// follows the proxy variables of the environment, but never for loopback. Redirections are not
// followed: they could lead the key to another host. Thread-safe.
class HttpClient {
 public:
  // `ca_file` is a PEM file with authorities; empty: the system's.
  // `loopback`: the address is on this machine, so that no proxy is asked.
  HttpClient(std::string url, Secret key, std::string ca_file, bool loopback,
             size_t most_reply = 4 << 20);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Blocks until the whole reply is there, at most `timeout`.
  // DEADLINE_EXCEEDED: it took too long. CANCELLED: `stop` was triggered; that is seen within a
  // second, except while a name server does not answer.
  // OUT_OF_RANGE: the reply is above `most_reply` bytes.
  // UNAVAILABLE: there is no connection, or TLS failed.
  absl::StatusOr<HttpReply> Post(absl::string_view json, absl::Duration timeout,
                                 const rpc::Cancel& stop);

 private:
  void* TakeHandle();
  void GiveHandle(void* handle);

  const std::string url_;
  const Secret key_;
  const std::string ca_file_;
  const bool loopback_;
  const size_t most_reply_;
  Mutex mu_;
  std::vector<void*> idle_ ABSL_GUARDED_BY(mu_);  // CURL*, each with its open connection.
};

}  // namespace sluice
