#pragma once

#include <string>

#include "common/verifiers/math/budget.h"
#include "common/verifiers/math/expr.h"

namespace sluice::math {

// Makes the sum or product of several nodes. Matrices of rational numbers are added and multiplied.
// Returns null if matrices cannot be.
Expr AddNodes(std::vector<Expr> terms, Budget& budget);
Expr MultiplyNodes(std::vector<Expr> factors, Budget& budget);

// Makes name_base^exponent(argument), such as \log_2 8 or \sin^2 x. `base` and `exponent` may be
// null. Functions have few names after that: lg and log_b are log with a base, \sin^{-1} is arcsin,
// sqrt is root, exp is a power of e. Returns null for a base that the function does not have.
Expr MakeFunction(std::string name, Expr base, Expr exponent, Expr argument);

}  // namespace sluice::math
