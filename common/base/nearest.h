#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

// The candidate that `word` is most likely a misspelling of: least edit distance, at most a third
// of the longer word's length (at least 1). Empty: none is near.
absl::string_view NearestMatch(absl::string_view word,
                               absl::Span<const absl::string_view> candidates);

}  // namespace sluice
