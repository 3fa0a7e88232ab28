#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rl/version.h"
#include "common/weights/fingerprint.h"

namespace sluice {

// What an engine finds when it reads all its weights again.
struct WeightsCheck {
  PolicyVersion version;             // The one in use.
  Fingerprint found, expected;       // Of all weights: in memory, and as published.
  std::vector<std::string> tensors;  // Names of those that differ.
};
using WeightsCheckDone = std::function<void(absl::StatusOr<WeightsCheck> check)>;

}  // namespace sluice
