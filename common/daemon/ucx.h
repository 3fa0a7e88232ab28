#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/daemon/daemon.h"

namespace sluice::daemon {

// The flag --ucx-devices, for daemons that pass weights to each other.
About::Flag UcxFlag();

// Tries the devices of --ucx-devices, if it was given. Errors are those of TryUcx().
absl::Status CheckUcxFlag(const Flags& flags);

// The devices over which this daemon reads memory of others and lets them read its own. Without
// the flag they are "shm" if it listens on loopback.
// FAILED_PRECONDITION: there are none.
absl::StatusOr<std::string> UcxDevices(const Flags& flags);

}  // namespace sluice::daemon
