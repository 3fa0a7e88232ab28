#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// The ports from `first` to `last`, both included.
struct PortRange {
  int first = 0, last = 0;  // Both 0: any port that the kernel gives.

  bool any() const { return first == 0; }
  std::string text() const;  // "29500-29600"
};

// Reads FIRST-LAST, or one port. Empty text is any port.
// INVALID_ARGUMENT: it is neither, or a port is not in 1 to 65535.
absl::StatusOr<PortRange> ParsePortRange(absl::string_view text);

}  // namespace sluice
