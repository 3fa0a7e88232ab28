#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "services/controller/core/types.h"

namespace sluice::controller {

// Where a viewer is in the steps of a job. A trainer group that goes back to a checkpoint trains
// steps again, so their reports are replaced (Job::rewritten_from): `rewrites` counts how many
// times the viewer has followed that. It counts within one controller process, which `run` names.
struct StepCursor {
  std::string run;
  int64_t rewrites = 0;
  int64_t after = -1;  // The last step that the viewer has; -1 if none.

  // Any other text than that of ToText() means that the viewer has nothing.
  static StepCursor Parse(absl::string_view text);
  std::string ToText() const;
};

// The cursor moved to the steps that are still valid, given the present process and the job's
// Job::rewritten_from.
StepCursor Follow(StepCursor cursor, const std::string& run,
                  const std::vector<int64_t>& rewritten_from);

// The reports as columns: `k`, `at` in seconds since 1970, and `values`, an object from the name of
// a value to a list with one number or null for each step.
nlohmann::ordered_json ColumnsOf(const std::vector<StepReport>& steps);

}  // namespace sluice::controller
