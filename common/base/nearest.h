#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

// The candidate that `word` is most likely a misspelling of, or an empty view if none is near. It
// has the least edit distance, which may be at most a third of the longer word's length (but 1 is
// always allowed).
absl::string_view NearestMatch(absl::string_view word,
                               absl::Span<const absl::string_view> candidates);

}  // namespace sluice
