#pragma once

#include "common/verifiers/verifier.h"

namespace sluice {

// 1 if the answer matches a regular expression.
//
//   pattern  an expression of RE2, at most 4 KiB; needed
//   match    search (the default): a part of the answer matches; full: all of it does
//
// RE2 takes time linear in the answer, whatever the pattern, and at most 1 MiB of memory for it.
absl::StatusOr<std::unique_ptr<Verifier>> MakeRegex(const nlohmann::json& args);

}  // namespace sluice
