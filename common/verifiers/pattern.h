#pragma once

#include <re2/re2.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

// Compiles a regular expression of RE2, which takes time linear in the text, whatever the pattern.
// INVALID_ARGUMENT: it is empty or above 4 KiB, it is no expression of RE2, or it would take more
// than 1 MiB of memory.
absl::StatusOr<std::unique_ptr<RE2>> CompilePattern(const std::string& text);

}  // namespace sluice
