#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/cores/core_share.h"
#include "common/daemon/daemon.h"

namespace sluice::daemon {

// The flag --cores, for daemons that compute on several threads.
About::Flag CoresFlag();

// This daemon's share of the cores: of the plan that --cores names, or else --threads of its own.
absl::StatusOr<std::unique_ptr<CoreShare>> OpenCores(const Flags& flags);

}  // namespace sluice::daemon
