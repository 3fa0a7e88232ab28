#pragma once

#include "common/verifiers/verifier.h"

namespace sluice {

// Properties of a text that tiny models learn within minutes. Every score is in [0, 1]. Characters
// are code points. Words are runs of ASCII letters, digits and apostrophes; case is ignored.
//
//   property    argument                  score
//   reversed    -                         right places / max(length of text, length of gold), the
//                                         divisor one larger if the end token is missing; gold: the
//                                         row's `answer`, backwards
//   length      target: words, 1..100000  max(0, 1 - |words - target| / target)
//   repetition  n: 1..8 (2)               different n-grams of words / n-grams; 0 with fewer than n
//                                         words
//   words       words: a list             share of the listed words that occur
//   letters     letters: ASCII letters    letters that are listed / all ASCII letters; 0 without
//                                         letters
absl::StatusOr<std::unique_ptr<Verifier>> MakeText(const nlohmann::json& args);

}  // namespace sluice
