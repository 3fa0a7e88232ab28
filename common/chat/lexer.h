#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::chat {

struct Token {
  enum Kind {
    kText,  // Between tags, after white space control.
    kBlockBegin,
    kBlockEnd,  // {% %}
    kPrintBegin,
    kPrintEnd,  // {{ }}
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  } kind = kEnd;
  // Of a string: its value. Of a number: the digits for strtoll or strtod, without underscores.
  std::string text;
  uint32_t at = 0;  // Byte offset in the source.
};

// Replaces \r\n and \r by \n, and drops one newline at the end. Lex() reads the result, and byte
// offsets refer to it.
std::string NormalizeSource(absl::string_view source);

// Splits the template into tokens. trim_blocks, lstrip_blocks, the signs `-` and `+` in tags, and
// `raw` are applied. Throws Failure for an unclosed tag, comment, string or raw block, for brackets
// that do not match, and for an unexpected character.
std::vector<Token> Lex(absl::string_view source);

// Returns "LINE:COLUMN" of a byte of the source. Both count from 1; columns are code points.
std::string PlaceOf(absl::string_view source, uint32_t at);

}  // namespace sluice::chat
