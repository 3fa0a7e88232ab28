#pragma once

#include "common/verifiers/verifier.h"

namespace sluice {

// The game of numbers: 1 if the answer is an expression that uses the row's `numbers` (a list of 1
// to 16 whole numbers) and has the value of the row's `answer`.
//
//   use    all (the default): each number exactly once; subset: each at most once
//   valid  score of an expression that keeps the rules but has another value (0); in [0, 1)
//   partial  score of an expression of other numbers (0), times the share of its numbers that are
//            the row's, or of the row's that it has, whichever is less; at most `valid`
//
// The expression is the last <answer>, else the last \boxed{}, else the last line. Of a chain of
// equalities its first side counts. It has + - * / ( ) and their Unicode twins, and is computed in
// exact rationals by a parser of its own, never by an interpreter. There are no powers and no
// decimals, and digits are not joined: 3 and 7 do not make 37. At most 1000 bytes.
absl::StatusOr<std::unique_ptr<Verifier>> MakeCountdown(const nlohmann::json& args);

}  // namespace sluice
