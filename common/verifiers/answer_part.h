#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// Parts of an answer by which verifiers find what it finally says. All take the text behind the
// thinking (AfterThinking()), and return parts of it.

// The text between the last <NAME> and the </NAME> behind it, without white space at its ends.
// Nothing if there is no such pair.
std::optional<absl::string_view> LastTag(absl::string_view text, absl::string_view name);

// The content of the last \boxed{..}, up to its own closing brace. Nothing if there is none, or if
// it is not closed.
std::optional<absl::string_view> LastBox(absl::string_view text);

// The last line that is not blank, without white space at its ends; empty if there is none.
absl::string_view LastLine(absl::string_view text);

}  // namespace sluice
