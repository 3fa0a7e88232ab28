#pragma once

#include "common/verifiers/math/budget.h"
#include "common/verifiers/math/expr.h"

namespace sluice::math {

// Whether the answer to a rational gold is finished: an integer, decimal, fraction, mixed number,
// power of such numbers, or one times a power of ten. Answers to other golds always are. Without
// this a model learns to answer with the question, as in 17*23.
bool IsFinal(const Expr& gold, const Expr& answer, Budget& budget);

// Whether all fractions of integers in the answer are in lowest terms.
bool IsReduced(const Expr& answer);

}  // namespace sluice::math
