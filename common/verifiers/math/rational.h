#pragma once

#include <gmpxx.h>

#include "common/verifiers/math/budget.h"
#include "common/verifiers/math/expr.h"

namespace sluice::math {

// These compute exactly and pay for it first. They return false, and leave `out` unspecified, if
// the budget is spent or the result would be larger than Budget::kRationalBits, which spends it.
bool AddRationals(const mpq_class& a, const mpq_class& b, Budget& budget, mpq_class& out);
bool MultiplyRationals(const mpq_class& a, const mpq_class& b, Budget& budget, mpq_class& out);
// Returns false also for 0 to a negative power.
bool RaiseRational(const mpq_class& base, const mpz_class& exponent, Budget& budget,
                   mpq_class& out);

// Sets `out` to the value of the formula if it is rational and found by arithmetic, integer powers,
// roots of perfect powers, factorials and the like. Returns false if not, or as above.
bool EvaluateRational(const Expr& node, Budget& budget, mpq_class& out);

// The size of a rational number in bits.
int64_t CountBits(const mpq_class& value);

}  // namespace sluice::math
