#pragma once

#include "absl/strings/string_view.h"
#include "common/verifiers/math/budget.h"
#include "common/verifiers/math/expr.h"
#include "common/verifiers/math/lexer.h"

namespace sluice::math {

// Parses an answer (PlainText, without the signs of LaTeX that begin and end a formula). Returns
// null if it cannot be read as mathematics, or if it is over the budget.
//
// A letter is a variable, "e", "i" and \pi are constants, f, g, h, F, G, H, P and W directly before
// a bracket are functions. Factors side by side are multiplied; 1/2x is (1/2)x; 2\frac12 and 2 1/2
// are mixed numbers.
Expr ParseAnswer(absl::string_view text, Comma comma, Budget& budget);

}  // namespace sluice::math
