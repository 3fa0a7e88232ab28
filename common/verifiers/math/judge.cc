#include "common/verifiers/math/judge.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/base/splitmix.h"
#include "common/verifiers/math/final_form.h"
#include "common/verifiers/math/parser.h"
#include "common/verifiers/math/rational.h"
#include "common/verifiers/math/relations.h"

namespace sluice::math {
namespace {

// The text without the signs around formulas, and with white space only where it keeps two words or
// numbers apart.
std::string Squeeze(absl::string_view text) {
  std::string out;
  bool space = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (absl::ascii_isspace(c)) space = true;
    if (absl::ascii_isspace(c) || c == '$') continue;
    const absl::string_view next = text.substr(i, 2);
    if (next == "\\," || next == "\\!" || next == "\\;" || next == "\\ " || next == "\\(" ||
        next == "\\)" || next == "\\[" || next == "\\]") {
      space = true;
      ++i;
      continue;
    }
    bool skipped = false;
    // \leftarrow is no \left.
    for (const absl::string_view size : {"\\left", "\\right"}) {
      const absl::string_view rest = text.substr(i);
      if (!absl::StartsWith(rest, size) || rest.size() == size.size() ||
          absl::ascii_isalpha(rest[size.size()]))
        continue;
      i += size.size() - 1;
      skipped = true;
      break;
    }
    if (skipped) continue;
    if (space && !out.empty() && absl::ascii_isalnum(out.back()) && absl::ascii_isalnum(c))
      out.push_back(' ');
    space = false;
    out.push_back(c);
  }
  while (!out.empty() && out.back() == '.') out.pop_back();
  return out;
}

// The words of a text, without fonts, braces and case.
std::string SqueezeWords(absl::string_view text) {
  std::string squeezed = absl::AsciiStrToLower(Squeeze(text)), out;
  absl::string_view rest = squeezed;
  while (!rest.empty()) {
    bool font = false;
    for (const absl::string_view command :
         {"\\textbf", "\\textit", "\\textnormal", "\\text", "\\mathrm", "\\mbox"}) {
      font = absl::ConsumePrefix(&rest, command);
      if (font) break;
    }
    if (font) continue;
    if (rest[0] != '{' && rest[0] != '}') out.push_back(rest[0]);
    rest.remove_prefix(1);
  }
  // (C) is C.
  if (out.size() == 3 && out[0] == '(' && out[2] == ')') return out.substr(1, 1);
  return out;
}

// The number of commas directly between digits.
int CountTightCommas(absl::string_view text) {
  int count = 0;
  for (size_t i = 1; i + 1 < text.size(); ++i) {
    if (text[i] == ',' && absl::ascii_isdigit(text[i - 1]) && absl::ascii_isdigit(text[i + 1]))
      ++count;
  }
  return count;
}

bool IsCollection(const Expr& node) {
  return Is(node, Kind::kList) || Is(node, Kind::kSet) || Is(node, Kind::kTuple) ||
         (Is(node, Kind::kRelation) && IsCollection(node->kids.back()));
}

struct Sides {
  const std::string& gold_text;
  const std::string& answer_text;
  Expr gold, answer;
};

// Equal with one of the readings that the commas between digits allow. The gold says whether it is
// a list or a number.
bool EqualInAnyReading(Sides& sides, const EqualOptions& options, Budget& budget) {
  if (EqualAnswers(sides.gold, sides.answer, options, budget)) return true;
  if (budget.spent()) return false;
  if (CountTightCommas(sides.answer_text) > 0) {
    const Comma comma = IsCollection(sides.gold) ? Comma::kSeparator : Comma::kDecimal;
    const Expr answer = ParseAnswer(sides.answer_text, comma, budget);
    if (answer != nullptr && EqualAnswers(sides.gold, answer, options, budget)) {
      sides.answer = answer;
      return true;
    }
  }
  // 1,234 is a number, but 100,200,300 may be a list.
  if (budget.spent() || CountTightCommas(sides.gold_text) < 2 || !IsCollection(sides.answer))
    return false;
  const Expr gold = ParseAnswer(sides.gold_text, Comma::kSeparator, budget);
  return gold != nullptr && EqualAnswers(gold, sides.answer, options, budget);
}

uint64_t SeedOf(absl::string_view gold) {
  uint64_t hash = 0;
  for (const char c : gold) hash = Mix64(hash + kGolden + static_cast<uint8_t>(c));
  return hash;
}

}  // namespace

const char* ReasonOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kRight: return "right";
    case Outcome::kWrong: return "wrong";
    case Outcome::kNoAnswer: return "no_answer";
    case Outcome::kUnreadable: return "unreadable";
    case Outcome::kTooComplex: return "too_complex";
    case Outcome::kNotFinal: return "not_final";
  }
  return "wrong";
}

Outcome Judge(absl::string_view response, absl::string_view gold, const JudgeOptions& options,
              Budget& budget) {
  const std::optional<std::string> answer_text =
      ExtractAnswer(response, options.extraction, budget);
  if (budget.spent()) return Outcome::kTooComplex;
  if (!answer_text) return Outcome::kNoAnswer;
  const std::optional<std::string> gold_text = ExtractGold(gold, budget);
  if (budget.spent()) return Outcome::kTooComplex;
  if (!gold_text) return Outcome::kWrong;  // CheckGold() refuses such a gold.

  Sides sides{*gold_text, *answer_text, ParseAnswer(*gold_text, Comma::kThousands, budget), {}};
  if (budget.spent()) return Outcome::kTooComplex;
  const bool words = sides.gold == nullptr || Is(sides.gold, Kind::kText);
  // Of letters beside words nothing is known but how they are written.
  const bool same_text = *gold_text == *answer_text ||
                         (words || Is(sides.gold, Kind::kMultiply) || Is(sides.gold, Kind::kSymbol)
                              ? SqueezeWords(*gold_text) == SqueezeWords(*answer_text) &&
                                    (words || !absl::StrContains(*gold_text, '^'))
                              : Squeeze(*gold_text) == Squeeze(*answer_text));
  const bool plain = !options.final_form && !options.require_reduced;
  if (same_text && !Squeeze(*gold_text).empty() && (words || plain)) return Outcome::kRight;

  sides.answer = ParseAnswer(*answer_text, Comma::kThousands, budget);
  if (budget.spent()) return Outcome::kTooComplex;
  if (sides.answer == nullptr) return Outcome::kUnreadable;
  if (words && !(sides.gold != nullptr && Is(sides.answer, Kind::kText))) return Outcome::kWrong;

  EqualOptions equal = options.equal;
  equal.seed = SeedOf(*gold_text);
  if (!EqualInAnyReading(sides, equal, budget))
    return budget.spent() ? Outcome::kTooComplex : Outcome::kWrong;
  if (options.final_form && !IsFinal(sides.gold, sides.answer, budget)) return Outcome::kNotFinal;
  if (options.require_reduced && !IsReduced(sides.answer)) return Outcome::kNotFinal;
  return Outcome::kRight;
}

Outcome JudgeNumber(absl::string_view response, const mpq_class& gold, Budget& budget) {
  const std::optional<std::string> text = ExtractAnswer(response, Extraction::kFlexible, budget);
  if (budget.spent()) return Outcome::kTooComplex;
  if (!text) return Outcome::kNoAnswer;
  const Expr answer = ParseAnswer(*text, Comma::kThousands, budget);
  mpq_class value;
  const bool rational = answer != nullptr && !budget.spent() &&
                        EvaluateRational(WithoutUnit(StatedValue(answer)), budget, value);
  if (budget.spent()) return Outcome::kTooComplex;
  if (!rational) return Outcome::kUnreadable;
  return value == gold ? Outcome::kRight : Outcome::kWrong;
}

std::string CheckGold(absl::string_view gold) {
  Budget budget;
  const std::optional<std::string> text = ExtractGold(gold, budget);
  if (!text) return budget.spent() ? "is longer than 2000 bytes" : "has no answer";
  if (Squeeze(*text).empty()) return "has no answer";
  ParseAnswer(*text, Comma::kThousands, budget);
  return budget.spent() ? "is too deep or has too long numbers" : "";
}

}  // namespace sluice::math
