#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice::controller {

// Checks the name of a daemon. `what` says in the message what kind of name it is.
// INVALID_ARGUMENT: `name` is not [a-z0-9][a-z0-9._-]{0,62}.
absl::Status CheckName(absl::string_view what, absl::string_view name);

// Checks the name of a job.
// INVALID_ARGUMENT: `name` is not [a-z0-9][a-z0-9-]{0,62}.
absl::Status CheckJobName(absl::string_view name);

}  // namespace sluice::controller
