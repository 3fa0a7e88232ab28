#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace sluice::math {

// Rewrites characters beyond ASCII as LaTeX or ASCII where they have a meaning in formulas: digits
// of other scripts, full-width characters, operators, fractions, superscripts, Greek letters, white
// space. Characters without width are removed, bytes that are not UTF-8 become U+FFFD, and all
// other characters stay.
std::string PlainText(absl::string_view text);

// Halves doubled backslashes (\\frac for \frac), which texts have that were escaped once too often.
// A line break \\ of a matrix stays.
std::string UndoubleBackslashes(absl::string_view text);

}  // namespace sluice::math
