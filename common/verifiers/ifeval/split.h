#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

// How IFEval's checks divide and search texts. All texts are UTF-8, and every function takes time
// in proportion to their length.
namespace sluice::ifeval {

// Whether a character is part of a word: a letter, a mark, a digit or an underscore.
bool IsWordCharacter(uint32_t code_point);

// The number of words, which are runs of such characters. "don't" are two words.
uint64_t CountWords(absl::string_view text);

// The number of sentences. A sentence ends behind . ! ? or an ellipsis, with the quotes and
// brackets that close there, if white space or the end of the text follows; behind their full-width
// forms; and at a blank line. Full stops end none
//   - before a word that begins in lower case,
// and a single one ends none
//   - behind a capital letter by itself ("J. Smith"), an abbreviation such as Dr. or e.g.,
//   - or behind a number that begins a line ("1. First").
// Parts without a letter or digit are none.
uint64_t CountSentences(absl::string_view text);

// Each character in lower case, without rules that depend on neighbours.
std::string Lower(absl::string_view text);

// Whether there is an upper-case letter, and no lower-case one; and the reverse.
bool IsUpper(absl::string_view text);
bool IsLower(absl::string_view text);

// The number of words that are IsUpper(). A word ends at white space and at punctuation other than
// hyphens and full stops. An apostrophe begins a new one: "I'm" has two.
uint64_t CountCapitalWords(absl::string_view text);

// Where `part`, which is not empty, occurs in `text`: without overlaps, from the left. With
// `whole_words` those count that no word character touches.
std::vector<size_t> FindAll(absl::string_view text, absl::string_view part,
                            bool whole_words = false);

// The pieces of `text` between the occurrences of `separator`.
std::vector<absl::string_view> SplitBy(absl::string_view text, absl::string_view separator);

}  // namespace sluice::ifeval
