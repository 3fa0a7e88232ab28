#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace sluice {

// The well-known split patterns, by hand: over ten times as fast as a general engine, and linear in
// the text.

struct Scanned {
  size_t end;  // Of the piece that begins where the scan did; beyond it.
  bool match;  // False: the piece is what lies before the next match.
};
// `text` is UTF-8, `at` < text.size() lies between two characters.
using Scanner = Scanned (*)(absl::string_view text, size_t at);

// The scanner that does what `pattern` says, or null: GPT-2, Llama 3 (and cl100k), Qwen2, Tekken,
// o200k, the three of DeepSeek V3. They are known by their exact text.
Scanner ScannerFor(absl::string_view pattern);
// Whether it gives matches only, whatever the text.
bool MatchesEverywhere(Scanner scanner);

extern const char kGpt2Pattern[];  // What ByteLevel splits by.

}  // namespace sluice
