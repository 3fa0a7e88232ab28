#pragma once

#include <string>

#include "absl/status/status.h"

namespace sluice {

// Formats an error as one string, for places that take only text: the message, then in brackets the
// catalogue number and the hint, as in `no row is left (SLUICE-QUEUE-0002; hint: raise
// data.epochs)`. A hint that the message already contains is left out.
std::string StatusText(const absl::Status& status);

}  // namespace sluice
