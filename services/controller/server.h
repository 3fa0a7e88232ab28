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
  std::string data_dir;     // Holds the store. Made if absent, and locked.
  std::string policy_file;  // The operator's policy.yaml. Empty: no job is limited.
  // Hosts by which browsers may open the web page (ui/ui.h), separated by commas. none: no page.
  std::string ui = "none";
  Clock* clock = nullptr;  // Null means the machine's clock.
};

// Builds the controller's parts, from its store to its services.
// INVALID_ARGUMENT BAD_CONFIG: the policy file is wrong.
// FAILED_PRECONDITION: there is no data directory in `options`, or another controller has locked
// it, or a newer build wrote its store.
absl::StatusOr<std::unique_ptr<daemon::Program>> MakeController(const Options& options,
                                                                const daemon::Host& host);

}  // namespace sluice::controller
