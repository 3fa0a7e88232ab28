#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/cores/core_share.h"
#include "common/daemon/daemon.h"

namespace sluice::daemon {

// The flag --cores, for daemons that compute with several threads.
About::Flag CoresFlag();

// The daemon's share of the cores. With --cores it is a share of the plan in that file. Without
// --cores it is --threads threads of its own, or UsableCores() of them if --threads is 0.
absl::StatusOr<std::unique_ptr<CoreShare>> OpenCores(const Flags& flags);

}  // namespace sluice::daemon
