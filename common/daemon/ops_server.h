#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/daemon/http_route.h"

namespace sluice::metrics {
class Registry;
}  // namespace sluice::metrics

namespace sluice::daemon {

// An HTTP server for operators and monitors: /metrics (Prometheus text), /livez (200 while the
// process answers) and /readyz (200 with a word, or 503 with the reason), and the daemon's own
// routes. Owns its threads, which end in the destructor.
class OpsServer {
 public:
  // Listens on `address`, HOST:PORT on loopback; port 0 means any free port. `metrics` outlives the
  // server. `ready` gives what /readyz says. It is called from the server's threads, as are the
  // routes.
  // INVALID_ARGUMENT: `address` is not an address, or not on loopback.
  // ALREADY_EXISTS PORT_IN_USE: another process listens there.
  static absl::StatusOr<std::unique_ptr<OpsServer>> Start(
      absl::string_view address, metrics::Registry* metrics,
      std::function<absl::StatusOr<std::string>()> ready, std::vector<HttpRoute> routes = {});
  ~OpsServer();
  OpsServer(const OpsServer&) = delete;
  OpsServer& operator=(const OpsServer&) = delete;

  // HOST:PORT with the actual port.
  const std::string& address() const;

 private:
  struct Impl;
  explicit OpsServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::daemon
