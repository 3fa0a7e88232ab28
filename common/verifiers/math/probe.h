#pragma once

#include "common/verifiers/math/budget.h"
#include "common/verifiers/math/expr.h"

namespace sluice::math {

// Compares formulas by their values at random points, which depend on `seed` alone: 12 points at
// which the first has a value, and at least 8. If it has values for whole numbers only, as (-1)^n,
// the points are whole. At each point the second must have a value too, equal to 1e-50 of its size.
bool EqualByProbes(const Expr& a, const Expr& b, uint64_t seed, Budget& budget);

// Whether a = c b at all points for one number c, which is positive if `positive`.
bool ProportionalByProbes(const Expr& a, const Expr& b, bool positive, uint64_t seed,
                          Budget& budget);

// Whether the formula, which has no variables, rounds to `rounded` / 10^decimals, half up or half
// to even.
bool RoundsTo(const Expr& exact, const mpq_class& rounded, int decimals, Budget& budget);

}  // namespace sluice::math
