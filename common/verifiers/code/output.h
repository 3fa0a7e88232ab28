#pragma once

#include "absl/strings/string_view.h"

namespace sluice::code {

// Whether a program printed what was expected: the same lines, but for white space at their ends
// and blank lines at the end of all. A line is also the same if its words are, and words if they
// are equal decimal numbers (1.50 and 1.5), or differ by at most float_tol, absolutely or relative
// to the expected one.
bool SameOutput(absl::string_view printed, absl::string_view expected, double float_tol);

}  // namespace sluice::code
