#pragma once

#include <string>

#include "absl/status/status.h"

namespace sluice {

// An error for a place that takes a text alone: its message, then in brackets what its detail has
// for people beyond it, as in `no row is left (SLUICE-QUEUE-0002; hint: raise data.epochs)`.
std::string StatusText(const absl::Status& status);

}  // namespace sluice
