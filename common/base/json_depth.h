#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace sluice {

// How many lists and objects lie within each other at the deepest place of `json`: 0 for a number,
// 1 for [1]. Of a text that is no JSON the answer is at least as deep as what a parser may build of
// it before it gives up.
//
// Copying or printing a JSON value recurses to that depth. Ask this of a text from outside first,
// because a text of 200 kB can nest deeply enough to overflow the stack.
size_t JsonDepth(absl::string_view json);

}  // namespace sluice
