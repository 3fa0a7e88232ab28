#pragma once

#include <re2/re2.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Compiles a regular expression of RE2, whose time is at most that of the pattern's size times the
// text's, and without large counted repetitions that of the text alone.
// INVALID_ARGUMENT: it is empty or above 4 KiB, it is no expression of RE2, or it would take more
// than 1 MiB of memory.
absl::StatusOr<std::unique_ptr<RE2>> CompilePattern(const std::string& text);

// Whether matching takes a few tens of milliseconds at most, whatever the text. If not, it must be
// left out.
bool IsCheap(const RE2& pattern, absl::string_view text);

}  // namespace sluice
