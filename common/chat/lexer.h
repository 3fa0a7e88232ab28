#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::chat {

struct Token {
  enum Kind {
    kText,  // Between tags, white space control applied.
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
  // Of a string: its value. Of a number: as strtoll and strtod read it, underscores gone.
  std::string text;
  uint32_t at = 0;  // Byte of the source.
};

// The template with \r\n and \r as \n, and one newline at its end dropped: what Lex reads and
// places refer to.
std::string NormalizeSource(absl::string_view source);

// The whole template as tokens, with trim_blocks, lstrip_blocks, the signs `-` and `+` in tags, and
// `raw` applied. Throws Failure: an unclosed tag, comment, string or raw block; brackets that do
// not match; a stray character.
std::vector<Token> Lex(absl::string_view source);

// "LINE:COLUMN" of a byte of the source, both from 1; columns are code points.
std::string PlaceOf(absl::string_view source, uint32_t at);

}  // namespace sluice::chat
