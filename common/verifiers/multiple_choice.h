#pragma once

#include "common/verifiers/verifier.h"

namespace sluice {

// 1 if the answer chooses the gold's letter. The gold is the row's `answer`, a letter from A to Z.
// With the row's `choices`, a list of texts, the gold may also be the text of a choice, and the
// answer may name a choice by its text.
//
// What the answer chooses, the first rule that finds a letter: the last \boxed{}; the last
// <answer>; the letters behind "answer is", "answer:", "choice is" and the like in the last
// sentence that has one; those in **bold**; a letter alone on the last line; the text of exactly
// one choice on the last line. A rule that finds two different letters means `ambiguous`, which is
// wrong. A letter may stand in brackets, and with a full stop or text behind it: (C), C., C) Paris.
//
// It has no arguments.
absl::StatusOr<std::unique_ptr<Verifier>> MakeMultipleChoice(const nlohmann::json& args);

}  // namespace sluice
