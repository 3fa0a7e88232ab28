#pragma once

#include "absl/strings/string_view.h"
#include "common/tokenizer/aligned_text.h"

namespace sluice {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// Brings `text` into a normal form of Unicode (UAX #15), which keeps its alignment.
void Normalize(UnicodeForm form, AlignedText* text);

// Lowercase, character by character, without the rules that look at neighbours.
void Lowercase(AlignedText* text);

}  // namespace sluice
