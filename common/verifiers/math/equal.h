#pragma once

#include "common/verifiers/math/values.h"

namespace sluice::math {

// Whether an answer is the gold's, with the structure that the gold has: lists in any order, tuples
// and intervals, sets, unions, matrices, equations up to a factor, inequalities up to a positive
// factor. x = 5 stands for 5, and a gold -1 < x < 2 for the interval (-1, 2), but not the reverse.
// Not symmetric in this and in the domain of a formula, which is the gold's.
bool EqualAnswers(const Expr& gold, const Expr& answer, const EqualOptions& options,
                  Budget& budget);

}  // namespace sluice::math
