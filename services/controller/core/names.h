#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice::controller {

// INVALID_ARGUMENT unless `name` is [a-z0-9][a-z0-9._-]{0,62}, as ids of daemons are; `what` is
// named.
absl::Status CheckName(absl::string_view what, absl::string_view name);

// Of jobs: no dots and underscores either.
absl::Status CheckJobName(absl::string_view name);

}  // namespace sluice::controller
