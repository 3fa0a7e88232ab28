#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/verifiers/math/budget.h"

namespace sluice::math {

enum class Extraction {
  kBoxed,     // Rule 1.
  kTagged,    // Rules 1 to 3.
  kAuto,      // All rules.
  kFlexible,  // Rules 2 to 6: a box is not looked for, but the number in it may be the last one.
};

// Finds the answer in a response. The first rule that finds one decides:
//   1. the last closed \boxed{..} or \fbox{..}, with earlier ones of its sentence (FindBoxes); a
//      sentence "the final answer is x" behind it comes before it
//   2. the last <answer>..</answer>
//   3. the rest of the line behind the last ####
//   4. the whole text, if it is only a formula or a number with its unit
//   5. in the sentence behind the last marker (answer, A:, Réponse, 答案, ..): all of it if it is
//      such a text, else its first formula or number
//   6. the last formula or number of the text
// Rules 4 to 6 read the last 64 KiB. The result is PlainText of at most 2000 bytes. Several boxes
// come as one list. Returns nullopt if there is no answer, or it is longer, or over the budget.
std::optional<std::string> ExtractAnswer(absl::string_view text, Extraction extraction,
                                         Budget& budget);

// The answer of a gold: the whole text if it is short or only a formula, or what rule 1 finds if it
// has a box, or what the other rules find if it is a text with sentences.
std::optional<std::string> ExtractGold(absl::string_view text, Budget& budget);

}  // namespace sluice::math
