#pragma once

#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/verifiers/math/budget.h"

namespace sluice::math {

// The inside of \boxed{..} or \fbox{..}.
struct Box {
  size_t command = 0;         // Where the command begins.
  size_t begin = 0, end = 0;  // What is inside.
};

// The last box that is closed, behind earlier ones that belong to it: those of the same sentence
// with at most four words between, none of which takes the earlier box back ("final", "actually",
// "wait"), and none of the boxes being a bare word. Empty if there is none.
std::vector<Box> FindBoxes(absl::string_view text, Budget& budget);

}  // namespace sluice::math
