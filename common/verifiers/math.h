#pragma once

#include "common/verifiers/verifier.h"

namespace sluice {

// Scores 1 if the answer in the text equals the gold as mathematics, else 0. The folder math/ says
// how the answer is found (extract.h) and what is equal (equal.h). The work is counted in steps and
// given up at a limit, which takes less than 50 ms: the verdict is then too_complex.
//
// Arguments (with defaults):
//   extract (auto)           boxed: only \boxed{..}; tagged: also <answer>..</answer> and ####;
//                            auto: also a marker such as "answer:", the last formula and number
//   form (value)             final: the answer to a rational gold must be a finished number, not an
//                            expression such as 17*23; for training
//   require_reduced (false)  fractions must be in lowest terms
//   ordered (false)          the order of the elements of a list counts
//   decimals (-1)            golds were rounded to so many decimals; the row's field `decimals`
//                            comes first; -1: they were not
// Reasons: right, wrong, no_answer, unreadable, too_complex, not_final, unfinished.
absl::StatusOr<std::unique_ptr<Verifier>> MakeMath(const nlohmann::json& args);

}  // namespace sluice
