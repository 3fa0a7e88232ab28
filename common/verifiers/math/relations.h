#pragma once

#include "common/verifiers/math/expr.h"

namespace sluice::math {

// Whether the formula is the name of something that an answer may state before its value: x, f(x),
// AB, |AB|, A:B or (x, y).
bool IsName(const Expr& node);

// The value that an equation or a chain of them states: 5 for x = 5, x = 2 + 3 = 5 and 2 + 3 = 5; S
// for "x in S"; 1/3 for x = 1/3 and about 0.33. Other formulas come back as they are.
Expr StatedValue(const Expr& node);

// The interval of the solutions of an inequality x < 5 or 1 < x <= 2, or null for others.
Expr SolutionInterval(const Expr& node);

// The same relations written with < and <= only, if they all point one way; otherwise the relation
// itself.
Expr PointLeft(const Expr& relation);

// The answers that a formula with +- stands for, as a list, or the formula itself.
Expr ExpandPlusMinus(const Expr& node);

}  // namespace sluice::math
