#pragma once

#include "absl/strings/string_view.h"
#include "common/tokenizer/aligned_text.h"

namespace sluice {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// Converts `text` to a normal form of Unicode (UAX #15). The alignment is kept.
void Normalize(UnicodeForm form, AlignedText* text);

// Converts to lower case, each character by itself, without rules that depend on neighbours.
void Lowercase(AlignedText* text);

}  // namespace sluice
