#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace sluice {

// Hand-written scanners for the well-known split patterns. They are over ten times as fast as a
// general engine, and linear in the text.

struct Scanned {
  size_t end;  // End of the piece that begins at `at`; > at.
  bool match;  // False: the piece is the text before the next match.
};
// `text` is UTF-8; `at` < text.size() is the first byte of a character.
using Scanner = Scanned (*)(absl::string_view text, size_t at);

// Returns the scanner for `pattern`, or null. The known patterns are those of GPT-2, Llama 3 (and
// cl100k), Qwen2, Tekken and o200k, and the three of DeepSeek V3. The pattern must have exactly the
// known text.
Scanner ScannerFor(absl::string_view pattern);
// Whether every piece is a match, for any text.
bool MatchesEverywhere(Scanner scanner);

extern const char kGpt2Pattern[];  // The pattern by which ByteLevel splits.

}  // namespace sluice
