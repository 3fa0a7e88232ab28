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
  std::string data_dir;    // Made if absent, locked; holds the store.
  Clock* clock = nullptr;  // Null: the machine's.
};

// The controller's parts, from its store to its services.
// FAILED_PRECONDITION: no data directory is given, or another controller has it, or its store is a
// newer build's.
absl::StatusOr<std::unique_ptr<daemon::Program>> MakeController(const Options& options,
                                                                const daemon::Host& host);

}  // namespace sluice::controller
