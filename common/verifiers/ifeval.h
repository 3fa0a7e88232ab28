#pragma once

#include "common/verifiers/verifier.h"

namespace sluice {

// 1 if the answer follows the instructions of its row, as IFEval (arXiv:2311.07911) checks them.
// The row has two lists of equal length: `instruction_id_list`, names such as punctuation:no_comma,
// and `kwargs`, an object with the arguments of each, in which null means absent.
//
//   mode   strict (the default): the answer as it is; loose: also without its first line, its last
//          line or both, and without asterisks; each instruction may hold in another of the forms
//   score  all (the default): 1 if all instructions are followed, else 0; fraction: their share
//
// The checks are those of ifeval/checks.h, which are all of IFEval's but response_language.
// english_capital and english_lowercase look at the letters alone, and not at the language. How
// words and sentences are told is in ifeval/split.h. An empty answer follows nothing.
//
// The time is that of a few passes over the answer for each instruction, and an answer for which
// that is too much scores 0 with the reason too_complex.
absl::StatusOr<std::unique_ptr<Verifier>> MakeIfeval(const nlohmann::json& args);

}  // namespace sluice
