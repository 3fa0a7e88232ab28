#pragma once

#include "common/verifiers/math/budget.h"
#include "common/verifiers/math/expr.h"

namespace sluice::math {

struct EqualOptions {
  bool ordered = false;  // The order of lists counts.
  int decimals = -1;     // The gold was rounded to so many decimals; -1: it was not.
  uint64_t seed = 0;     // Of the random points.
};

// Whether two single values are equal: numbers, or formulas over variables. Units and percent are
// as in README.md of the folder. The first is the gold.
bool EqualValues(const Expr& gold, const Expr& answer, const EqualOptions& options, Budget& budget);

// A value without the unit or percent that it is given in.
Expr WithoutUnit(const Expr& node);

}  // namespace sluice::math
