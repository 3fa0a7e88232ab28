#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/sandbox/code.h"

namespace sluice::code {

// The content of the last fenced block (``` or ~~~) of the language; if no block names a language,
// of the last block. Nothing: there is none that is closed.
std::optional<std::string> LastBlock(absl::string_view text, CodeTask::Language language);

}  // namespace sluice::code
