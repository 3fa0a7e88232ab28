#include "common/verifiers/math/prose.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "common/verifiers/math/commands.h"
#include "common/verifiers/math/units.h"

namespace sluice::math {
namespace {

constexpr size_t kMaxFormula = 2000;  // Bytes. What is longer is no answer.

bool IsFormulaWord(absl::string_view word) {
  if (word.size() <= 1) return true;
  // Two points of a figure, such as AB.
  if (word.size() <= 3 &&
      std::all_of(word.begin(), word.end(), [](char c) { return absl::ascii_isupper(c); }))
    return true;
  std::string lower = absl::AsciiStrToLower(word);
  absl::string_view rest = lower;
  for (const absl::string_view link : {"and", "or"}) {
    // "or" without a space behind it: 1orx.
    if (absl::StartsWith(rest, link) && rest.size() <= link.size() + 1) return true;
  }
  return rest == "percent" || rest == "pct" || rest == "mod" || IsFunctionName(rest) ||
         !FindConstantWord(rest).empty() || IsUnitWord(rest);
}

// The number of words in a formula that formulas do not have. Commands and their \text{..} are not
// counted. Letters beyond ASCII count as words.
int CountProse(absl::string_view text) {
  int words = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const size_t begin = i;
    if (c == '\\') {
      ++i;
      while (i < text.size() && absl::ascii_isalpha(text[i])) ++i;
      const absl::string_view name = text.substr(begin + 1, i - begin - 1);
      if (i < text.size() && text[i] == '{' &&
          (name == "text" || name == "textbf" || name == "mbox" || name == "mathrm" ||
           name == "textit" || name == "textnormal" || name == "operatorname" || name == "begin" ||
           name == "end")) {
        while (i < text.size() && text[i] != '}') ++i;
      }
      if (i == begin + 1) ++i;
    } else if (absl::ascii_isalpha(c)) {
      while (i < text.size() && absl::ascii_isalpha(text[i])) ++i;
      // Letters directly behind a number or bracket are factors: 3ab.
      const bool factors = begin > 0 && i - begin <= 3 &&
                           (absl::ascii_isdigit(text[begin - 1]) || text[begin - 1] == ')' ||
                            text[begin - 1] == '}');
      if (!factors && !IsFormulaWord(text.substr(begin, i - begin))) ++words;
    } else if (static_cast<uint8_t>(c) >= 0x80) {
      while (i < text.size() && static_cast<uint8_t>(text[i]) >= 0x80) ++i;
      ++words;
    } else {
      ++i;
    }
  }
  return words;
}

struct Delimiters {
  absl::string_view open, close;
};
constexpr Delimiters kDelimiters[] = {{"$$", "$$"}, {"$", "$"}, {"\\(", "\\)"}, {"\\[", "\\]"}};

// If a formula opens at `at`, sets `mention` to what is inside and returns where it ends, else 0.
size_t MatchFormula(absl::string_view text, size_t at, Mention& mention, Budget& budget) {
  for (const Delimiters& pair : kDelimiters) {
    if (!absl::StartsWith(text.substr(at), pair.open)) continue;
    const size_t begin = at + pair.open.size();
    size_t end = begin;
    for (;;) {
      // A text of opening signs alone makes this quadratic.
      if (!budget.Spend(1)) return 0;
      if (end >= text.size() || end - begin > kMaxFormula) return 0;
      if (absl::StartsWith(text.substr(end), pair.close)) break;
      if (pair.open[0] == '$' && absl::StartsWith(text.substr(end), "\n\n")) return 0;
      end += text[end] == '\\' ? 2 : 1;
    }
    if (CountProse(text.substr(begin, end - begin)) > 1 ||
        text.substr(begin, end - begin).find('?') != absl::string_view::npos)
      return 0;
    mention = {.begin = begin, .end = end, .formula = true};
    return end + pair.close.size();
  }
  return 0;
}

bool IsDigit(absl::string_view text, size_t at) {
  return at < text.size() && absl::ascii_isdigit(text[at]);
}

// Moves behind digits with thousands commas and a decimal part.
size_t SkipDigits(absl::string_view text, size_t at) {
  while (IsDigit(text, at)) ++at;
  for (;;) {
    if (at < text.size() && (text[at] == ',' || text[at] == '.') && IsDigit(text, at + 1)) {
      ++at;
    } else if (absl::StartsWith(text.substr(at), "{,}") && IsDigit(text, at + 3)) {
      at += 3;
    } else {
      return at;
    }
    while (IsDigit(text, at)) ++at;
  }
}

size_t SkipSpaces(absl::string_view text, size_t at) {
  while (at < text.size() && text[at] == ' ') ++at;
  return at;
}

// Moves behind what may follow the digits of a number: / and a denominator, a power of ten, %.
size_t SkipRestOfNumber(absl::string_view text, size_t at) {
  if (at < text.size() && text[at] == '/' && IsDigit(text, at + 1)) at = SkipDigits(text, at + 1);
  // 1 1/2
  if (at < text.size() && text[at] == ' ' && IsDigit(text, at + 1)) {
    size_t next = at + 1;
    while (IsDigit(text, next)) ++next;
    if (next < text.size() && text[next] == '/' && IsDigit(text, next + 1)) {
      at = next + 1;
      while (IsDigit(text, at)) ++at;
    }
  }
  for (const absl::string_view times : {"\\times", "\\cdot"}) {
    size_t next = SkipSpaces(text, at);
    if (!absl::StartsWith(text.substr(next), times)) continue;
    next = SkipSpaces(text, next + times.size());
    if (!absl::StartsWith(text.substr(next), "10^")) continue;
    next += 3;
    while (next < text.size() && (absl::ascii_isdigit(text[next]) || text[next] == '-' ||
                                  text[next] == '{' || text[next] == '}'))
      ++next;
    at = next;
  }
  const size_t percent = SkipSpaces(text, at);
  if (absl::StartsWith(text.substr(percent), "\\%")) return percent + 2;
  return absl::StartsWith(text.substr(percent), "%") ? percent + 1 : at;
}

// Whether an operator of arithmetic stands before `at`, so that the number there is only a part.
bool FollowsOperator(absl::string_view text, size_t at) {
  while (at > 0 && text[at - 1] == ' ') --at;
  if (at == 0) return false;
  const char c = text[at - 1];
  // Two stars begin bold text.
  if (c == '*') return !(at >= 2 && text[at - 2] == '*');
  return c == '+' || c == '/' || c == '^' || c == '_' || (c == '-' && at >= 2);
}

// Whether arithmetic goes on behind a number.
bool PrecedesOperator(absl::string_view text, size_t at) {
  if (at < text.size() && (text[at] == '^' || text[at] == '_' || text[at] == '!')) {
    return text[at] != '!' || (at + 1 < text.size() && text[at + 1] != ' ');
  }
  // 2x, but not 10m or 10weeks.
  size_t end = at;
  while (end < text.size() && absl::ascii_isalpha(text[end])) ++end;
  if (end > at && !IsUnitWord(absl::AsciiStrToLower(text.substr(at, end - at)))) return true;
  at = SkipSpaces(text, at);
  if (at >= text.size()) return false;
  const char c = text[at];
  if (c == '*') return !absl::StartsWith(text.substr(at), "**");
  if (c == '\\')
    return !absl::StartsWith(text.substr(at), "\\)") && !absl::StartsWith(text.substr(at), "\\]") &&
           !absl::StartsWith(text.substr(at), "\\$") &&
           !absl::StartsWith(text.substr(at), "\\text");
  return c == '+' || c == '/' || c == '<' || c == '>' ||
         (c == '-' && at + 1 < text.size() && text[at + 1] == ' ');
}

// If a number starts at `at`, returns where it ends, else 0.
size_t MatchNumber(absl::string_view text, size_t at, Mention& mention) {
  size_t digits = at;
  if (text[digits] == '-' || text[digits] == '+') ++digits;
  if (digits < text.size() && text[digits] == '$') ++digits;
  if (!IsDigit(text, digits) &&
      !(digits < text.size() && text[digits] == '.' && IsDigit(text, digits + 1)))
    return 0;
  const size_t end =
      SkipRestOfNumber(text, SkipDigits(text, IsDigit(text, digits) ? digits : digits + 1));
  mention = {.begin = at, .end = end};
  mention.partial = FollowsOperator(text, at) || PrecedesOperator(text, end);
  return end;
}

// Moves behind an exponent or index, which is no number of its own.
size_t SkipScript(absl::string_view text, size_t at) {
  if (!absl::StartsWith(text.substr(at), "{")) {
    while (at < text.size() && absl::ascii_isalnum(text[at])) ++at;
    return at;
  }
  const size_t close = text.substr(0, at + 64).find('}', at);
  return close == absl::string_view::npos ? at + 1 : close + 1;
}

// Whether the character before `at` belongs to a word or number that goes on there.
bool InsideWord(absl::string_view text, size_t at) {
  if (at == 0) return false;
  const char c = text[at - 1];
  return absl::ascii_isalnum(c) || c == '_' || c == '\\';
}

}  // namespace

bool IsBareAnswer(absl::string_view text, Budget& budget) {
  // What is between the signs of LaTeX may have one word, such as $Even$.
  std::string outside;
  for (size_t at = 0; at < text.size();) {
    Mention mention;
    const size_t end =
        text[at] == '$' || text[at] == '\\' ? MatchFormula(text, at, mention, budget) : 0;
    if (end != 0) {
      outside.push_back(' ');
      at = end;
    } else {
      if (text[at] == '?') return false;
      outside.push_back(text[at]);
      if (text[at] == '\\' && at + 1 < text.size()) outside.push_back(text[++at]);
      ++at;
    }
  }
  return CountProse(outside) == 0;
}

std::vector<Mention> FindMentions(absl::string_view text, Budget& budget) {
  std::vector<Mention> out;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    Mention mention;
    size_t end = 0;
    if (c == '$' || c == '\\') end = MatchFormula(text, at, mention, budget);
    const bool number = absl::ascii_isdigit(c) || c == '-' || c == '+' || c == '.';
    if (end == 0 && number && !InsideWord(text, at)) end = MatchNumber(text, at, mention);
    if (end != 0) {
      out.push_back(mention);
      at = end;
    } else if (c == '\\') {
      at += 2;
    } else if (c == '^' || c == '_') {
      at = SkipScript(text, at + 1);
    } else if (absl::ascii_isalnum(c)) {
      // The digits of AB12 are no number.
      while (at < text.size() && (absl::ascii_isalnum(text[at]) || text[at] == '_')) ++at;
    } else {
      ++at;
    }
  }
  return out;
}

size_t FindSentenceEnd(absl::string_view text, size_t at, Budget& budget) {
  while (at < text.size()) {
    const char c = text[at];
    Mention unused;
    const size_t formula = c == '$' || c == '\\' ? MatchFormula(text, at, unused, budget) : 0;
    if (formula != 0) {
      at = formula;
      continue;
    }
    const absl::string_view rest = text.substr(at);
    if (absl::StartsWith(rest, "\n\n") || absl::StartsWith(rest, "。")) return at;
    const bool stop = c == '.' || c == '!' || c == '?';
    if (stop && (at + 1 == text.size() || absl::ascii_isspace(text[at + 1]))) return at;
    at += c == '\\' ? 2 : 1;
  }
  return text.size();
}

}  // namespace sluice::math
