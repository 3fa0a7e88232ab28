#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace sluice {

// The largest number of lists and objects that are nested within each other in `json`: 0 for a
// number, 1 for [1]. For a text that is not JSON, the result is at least the depth of anything that
// a parser may build before it reports the error.
//
// Copying or printing a JSON value recurses to that depth, and a text of 200 kB can nest deeply
// enough to overflow the stack. Check the depth of every text from outside before it is parsed.
size_t JsonDepth(absl::string_view json);

}  // namespace sluice
