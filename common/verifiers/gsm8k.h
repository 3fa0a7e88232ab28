#pragma once

#include "common/verifiers/verifier.h"

namespace sluice {

// Scores 1 if the number after the last `####` of the answer equals the gold's, as rationals (18.0
// equals 18), else 0. The gold's number is the one after its own last `####`; without `####`, the
// whole field (a text or a number) is the number. Arguments (with defaults):
//   extract (strict)  strict: an answer without `####` scores 0; flexible: without it, the number
//                     in <answer>..</answer>, behind a marker such as "answer:", or the last one of
//                     the text counts, with any unit (math/extract.h)
absl::StatusOr<std::unique_ptr<Verifier>> MakeGsm8k(const nlohmann::json& args);

}  // namespace sluice
