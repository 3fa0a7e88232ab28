#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/verifiers/code/code.h"
#include "common/verifiers/countdown.h"
#include "common/verifiers/exact.h"
#include "common/verifiers/format.h"
#include "common/verifiers/gsm8k.h"
#include "common/verifiers/ifeval.h"
#include "common/verifiers/json_schema.h"
#include "common/verifiers/judge.h"
#include "common/verifiers/math.h"
#include "common/verifiers/multiple_choice.h"
#include "common/verifiers/plugin.h"
#include "common/verifiers/regex.h"
#include "common/verifiers/text.h"
#include "common/verifiers/verifier.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

// The form of the table for a verifier that needs nothing but its arguments.
template <absl::StatusOr<std::unique_ptr<Verifier>> (*make)(const nlohmann::json&)>
absl::StatusOr<std::unique_ptr<Verifier>> Pure(const nlohmann::json& args, const VerifierContext&) {
  return make(args);
}

}  // namespace

const std::vector<VerifierRow>& Verifiers() {
  static const std::vector<VerifierRow>* const rows = new std::vector<VerifierRow>{
      {"code", "1 if the program of the answer passes the row's tests", MakeCode},
      {"countdown", "1 if the answer makes the target number from the row's numbers",
       Pure<MakeCountdown>},
      {"exact", "1 if the answer equals the gold (the reference answer)", Pure<MakeExact>},
      {"format", "1 if the answer has the given tags, each once and in order", Pure<MakeFormat>},
      {"gsm8k", "1 if the number after #### equals the gold's number", Pure<MakeGsm8k>},
      {"ifeval", "1 if the answer follows the row's instructions, as IFEval checks them",
       Pure<MakeIfeval>},
      {"json_schema", "1 if the answer is JSON that a schema accepts", Pure<MakeJsonSchema>},
      {"judge", "the grade that a language model of the operator gives", MakeJudge},
      {"math", "1 if the answer equals the gold as mathematics", Pure<MakeMath>},
      {"multiple_choice", "1 if the answer chooses the gold's letter", Pure<MakeMultipleChoice>},
      {"plugin", "the score of a function of yours, as in verl or TRL, or of a program",
       MakePlugin},
      {"regex", "1 if the answer matches a pattern", Pure<MakeRegex>},
      {"text", "a property of the text: reversed, length, repetition, words, letters",
       Pure<MakeText>},
  };
  return *rows;
}

absl::StatusOr<std::unique_ptr<Verifier>> MakeVerifier(absl::string_view name,
                                                       const nlohmann::json& args,
                                                       const VerifierContext& context) {
  for (const VerifierRow& row : Verifiers()) {
    if (row.name == name) return row.make(args, context);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown verifier \"", name, "\"; the known ones are: ",
                   absl::StrJoin(Verifiers(), ", ", [](std::string* out, const VerifierRow& row) {
                     absl::StrAppend(out, row.name);
                   })));
}

std::vector<absl::StatusOr<Verdict>> Verifier::ScoreGroup(absl::Span<const Answer> answers,
                                                          const nlohmann::json& row) const {
  std::vector<absl::StatusOr<Verdict>> verdicts;
  for (const Answer& answer : answers) verdicts.push_back(Score(answer, row));
  return verdicts;
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
