#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/collective/port_range.h"
#include "common/daemon/daemon.h"

namespace sluice::daemon {

// The flags --collective-host and --collective-ports, for daemons that are ranks of a group
// (common/collective).
std::vector<About::Flag> CollectiveFlags();

// Where other ranks reach this daemon.
struct CollectiveAddress {
  std::string host;  // Empty: nowhere.
  PortRange ports;
};
// What the flags say, for a daemon that listens on `listen` (HOST:PORT): without --collective-host
// it is reached on loopback if it listens there, else nowhere.
// INVALID_ARGUMENT: the ports are no range.
absl::StatusOr<CollectiveAddress> ReadCollectiveFlags(const Flags& flags, absl::string_view listen);

}  // namespace sluice::daemon
