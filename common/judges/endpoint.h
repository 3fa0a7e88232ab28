#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/secret.h"

// The addresses and keys of servers that the operator names.
namespace sluice {

// The host of an URL, without user, port and path. Empty: it has none.
absl::string_view HostOf(absl::string_view url);

// INVALID_ARGUMENT: `url` is no http or https address, has a user, a query or a fragment; or a key
// would be sent to another machine in clear.
absl::Status CheckUrl(const std::string& url, bool has_key);

// Reads the one word of a key file.
// FAILED_PRECONDITION: every user of the host can read it.
// INVALID_ARGUMENT: it is empty, or has more than one word.
absl::StatusOr<Secret> ReadKeyFile(const std::string& path);

}  // namespace sluice
