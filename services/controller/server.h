#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/daemon/daemon.h"
#include "common/meta/store.h"

namespace sluice::controller {

struct Options {
  std::string id = "controller-0";
  // The store in a Redis, which several controllers share (meta::Target). An empty URL: the store
  // is an SQLite file in `data_dir`.
  meta::Target store;
  std::string data_dir;     // Holds the SQLite file. Made if absent, and locked.
  std::string policy_file;  // The operator's policy.yaml. Empty: no job is limited.
  // Hosts by which browsers may open the web page (ui/ui.h), separated by commas. none: no page.
  std::string ui = "none";
  Clock* clock = nullptr;  // Null means the machine's clock.
};

// Builds the controller's parts, from its store to its services. With a store in a Redis it is a
// Standby until it has the store's lease.
// INVALID_ARGUMENT BAD_CONFIG: the policy file is wrong.
// INVALID_ARGUMENT: the flags of the store do not belong together, or its URL names no Redis.
// FAILED_PRECONDITION: there is neither a store nor a data directory in `options`, or another
// controller has locked the directory, or a newer build wrote its store.
absl::StatusOr<std::unique_ptr<daemon::Program>> MakeController(const Options& options,
                                                                const daemon::Host& host);

}  // namespace sluice::controller
