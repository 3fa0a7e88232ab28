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

// An HTTP server for operators and monitors: /metrics (Prometheus text), /livez and /readyz (200,
// or 503 with the reason), and the daemon's own routes. Owns its threads, which end in the
// destructor.
class OpsServer {
 public:
  // What the probes answer; called from the server's threads.
  struct Probes {
    // An error: the process should be started anew.
    std::function<absl::Status()> live;
    // A word on what the daemon does, such as "ok". An error: it can do no work now.
    std::function<absl::StatusOr<std::string>()> ready;
  };
  // Listens on `address`, HOST:PORT on loopback; port 0 means any free port. `metrics` outlives the
  // server. The routes too are called from the server's threads.
  // INVALID_ARGUMENT: `address` is not an address, or not on loopback.
  // ALREADY_EXISTS PORT_IN_USE: another process listens there.
  static absl::StatusOr<std::unique_ptr<OpsServer>> Start(absl::string_view address,
                                                          metrics::Registry* metrics, Probes probes,
                                                          std::vector<HttpRoute> routes = {});
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
