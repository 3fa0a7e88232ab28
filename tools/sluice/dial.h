#pragma once

#include <netdb.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/fd.h"

// TCP and HTTP for the CLI's own checks. Daemons are otherwise called through common/rpc.
namespace sluice::cli {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// The addresses of HOST:PORT; at least one. INVALID_ARGUMENT: it is not HOST:PORT. NOT_FOUND: the
// name has no address.
absl::StatusOr<AddressList> ResolveAddress(absl::string_view address);

// Connects to HOST:PORT. UNAVAILABLE: nobody listens there. DEADLINE_EXCEEDED: no answer within
// `timeout`. Else as ResolveAddress().
absl::StatusOr<Fd> DialTcp(absl::string_view address, absl::Duration timeout);

// Gets http://ADDRESS/PATH and returns the body. `timeout` is for all of it.
// UNAVAILABLE, DEADLINE_EXCEEDED: as DialTcp().
// FAILED_PRECONDITION: the status is not 200; the message has it.
// RESOURCE_EXHAUSTED: the answer is larger than `limit` bytes.
absl::StatusOr<std::string> HttpGet(absl::string_view address, absl::string_view path,
                                    absl::Duration timeout, uint64_t limit = 16 << 20);

}  // namespace sluice::cli
