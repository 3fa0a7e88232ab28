#pragma once

#include "common/verifiers/verifier.h"

namespace sluice {

// 1 if the answer equals the gold, or one of a list of golds, else 0. Golds are texts or numbers.
//   trim (true)          white space at both ends does not count
//   ignore_case (false)  upper and lower case are the same, for ASCII letters only
absl::StatusOr<std::unique_ptr<Verifier>> MakeExact(const nlohmann::json& args);

}  // namespace sluice
