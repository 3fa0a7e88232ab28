#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/cores/core_share.h"
#include "common/daemon/daemon.h"

namespace sluice::daemon {

// The flag --cores, for daemons that compute with several threads.
About::Flag CoresFlag();

// The daemon's share of the cores. With --cores it is a share of the plan in that file, else
// --threads threads of its own (or as many as UsableCores() counts).
absl::StatusOr<std::unique_ptr<CoreShare>> OpenCores(const Flags& flags);

}  // namespace sluice::daemon
