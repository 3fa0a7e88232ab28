#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/verifiers/exact.h"
#include "common/verifiers/gsm8k.h"
#include "common/verifiers/text.h"
#include "common/verifiers/verifier.h"
#include "nlohmann/json.hpp"

namespace sluice {

const std::vector<VerifierRow>& Verifiers() {
  static const std::vector<VerifierRow>* const rows = new std::vector<VerifierRow>{
      {"exact", "1 if the answer equals the gold (the reference answer)", MakeExact},
      {"gsm8k", "1 if the number after #### equals the gold's number", MakeGsm8k},
      {"text", "a property of the text: reversed, length, repetition, words, letters", MakeText},
  };
  return *rows;
}

absl::StatusOr<std::unique_ptr<Verifier>> MakeVerifier(absl::string_view name,
                                                       const nlohmann::json& args) {
  for (const VerifierRow& row : Verifiers()) {
    if (row.name == name) return row.make(args);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown verifier \"", name, "\"; the known ones are: ",
                   absl::StrJoin(Verifiers(), ", ", [](std::string* out, const VerifierRow& row) {
                     absl::StrAppend(out, row.name);
                   })));
}

bool AfterThinking(absl::string_view text, absl::string_view* answer) {
  constexpr absl::string_view kBegin = "<think>", kEnd = "</think>";
  const size_t end = text.rfind(kEnd);
  const size_t begin = text.rfind(kBegin);
  if (begin != absl::string_view::npos && (end == absl::string_view::npos || end < begin))
    return false;
  *answer = end == absl::string_view::npos ? text : text.substr(end + kEnd.size());
  return true;
}

}  // namespace sluice
