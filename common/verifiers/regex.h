#pragma once

#include "common/verifiers/verifier.h"

namespace sluice {

// 1 if the answer matches a regular expression.
//
//   pattern  an expression of RE2, at most 4 KiB; needed
//   match    search (the default): a part of the answer matches; full: all of it does
//
// RE2 needs no backtracking. An answer that is long for a pattern with large counted repetitions,
// as in a{1000}, is the verdict `too_complex`.
absl::StatusOr<std::unique_ptr<Verifier>> MakeRegex(const nlohmann::json& args);

}  // namespace sluice
