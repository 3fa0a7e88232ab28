#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::chat {

struct Token {
  enum Kind {
    kText,       // Text between tags, white space control already applied.
    kBlockBegin, kBlockEnd,    // {% %}
    kPrintBegin, kPrintEnd,    // {{ }}
    kName, kString, kInteger, kFloat,
    kOperator,   // One of + - * / // % ~ == != < <= > >= = ( ) [ ] { } , : . |
    kEnd,
  } kind = kEnd;
  std::string text;  // Of a string: its value.
  int line = 1, column = 1;
};

// "template:LINE:COL: what"
absl::Status ErrorAt(const Token& at, absl::StatusCode code, absl::string_view what);

// The whole template as tokens, with trim_blocks, lstrip_blocks and the signs `-` and `+` in tags applied.
// INVALID_ARGUMENT: an unclosed tag, comment or string, or a character that begins no token.
absl::StatusOr<std::vector<Token>> Lex(absl::string_view source);

}  // namespace sluice::chat
