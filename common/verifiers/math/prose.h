#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/verifiers/math/budget.h"

namespace sluice::math {

// Whether a text is a formula or a value with its unit, and not a sentence: outside of $..$, \(..\)
// and \text{..} it has no words but "and", "or", units and the names of functions.
bool IsBareAnswer(absl::string_view text, Budget& budget);

// A formula between signs of LaTeX, or a number, in a running text.
struct Mention {
  size_t begin = 0, end = 0;
  bool formula = false;  // Between $..$, $$..$$, \(..\) or \[..\].
  bool partial = false;  // A number that is a part of a longer formula, such as 3 in "x + 3".
};

// Finds formulas and numbers, in the order of the text (PlainText). Of dollar signs that are not
// closed in their paragraph, or that enclose a sentence, only the number behind them counts.
std::vector<Mention> FindMentions(absl::string_view text, Budget& budget);

// The end of the sentence that starts at `at`: a stop followed by white space, or the end of the
// paragraph. Stops inside formulas do not count.
size_t FindSentenceEnd(absl::string_view text, size_t at, Budget& budget);

}  // namespace sluice::math
