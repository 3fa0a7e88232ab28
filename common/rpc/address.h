#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::rpc {

// OK: `address` is HOST:PORT with a port from 0 to 65535, and its host is on loopback (127.x.x.x,
// ::1 in brackets, or localhost) or `tls` is true.
// INVALID_ARGUMENT BAD_ADDRESS: it is not HOST:PORT. A host is a name, an IPv4 address, or an IPv6
// address in brackets.
// INVALID_ARGUMENT NOT_LOOPBACK: it is another host, and `tls` is false.
absl::Status CheckAddress(absl::string_view address, bool tls);

// Whether a server on `address` listens on all interfaces: 0.0.0.0:PORT or [::]:PORT.
bool IsOnAllInterfaces(absl::string_view address);

// The address at which other hosts reach a server that listens on `listening`: `advertise`, which
// is HOST:PORT, or HOST for the port of `listening`. Empty: `listening` itself.
// INVALID_ARGUMENT BAD_ADDRESS: `advertise` is neither, or its host means all interfaces.
// INVALID_ARGUMENT NO_ADVERTISED_ADDRESS: `advertise` is empty, and the server listens on all
// interfaces.
absl::StatusOr<std::string> AdvertisedAddress(absl::string_view advertise,
                                              absl::string_view listening);

}  // namespace sluice::rpc
