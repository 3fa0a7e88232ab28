#pragma once

#include "common/verifiers/verifier.h"

namespace sluice {

// Scores 1 if the answer equals the gold (the reference answer), or one of a list of golds, else 0.
// Golds are texts or numbers. Arguments (with defaults):
//   trim (true)          ignore white space at both ends
//   ignore_case (false)  ignore case, for ASCII letters only
absl::StatusOr<std::unique_ptr<Verifier>> MakeExact(const nlohmann::json& args);

}  // namespace sluice
