#include "common/verifiers/code/output.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/verifiers/decimal.h"

namespace sluice::code {
namespace {

// Digits with perhaps a sign, a point and an exponent. ParseRational() reads more.
bool LooksDecimal(absl::string_view word) {
  return word.find_first_not_of("+-.0123456789eE") == absl::string_view::npos &&
         word.find_first_of("0123456789") != absl::string_view::npos;
}

bool SameWord(absl::string_view word, absl::string_view expected, double float_tol) {
  if (word == expected) return true;
  if (!LooksDecimal(word) || !LooksDecimal(expected)) return false;
  const std::optional<Rational> a = ParseRational(word), b = ParseRational(expected);
  if (a.has_value() && a == b) return true;
  double x = 0, y = 0;
  if (float_tol == 0 || !absl::SimpleAtod(word, &x) || !absl::SimpleAtod(expected, &y))
    return false;
  return std::abs(x - y) <= float_tol * std::max(1.0, std::abs(y));
}

std::vector<absl::string_view> LinesOf(absl::string_view text) {
  return absl::StrSplit(absl::StripTrailingAsciiWhitespace(text), '\n');
}

}  // namespace

bool SameOutput(absl::string_view printed, absl::string_view expected, double float_tol) {
  const std::vector<absl::string_view> lines = LinesOf(printed), wanted = LinesOf(expected);
  if (lines.size() != wanted.size()) return false;
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto split = absl::ByAnyChar(" \t\r\v\f");
    const std::vector<absl::string_view> words = absl::StrSplit(lines[i], split, absl::SkipEmpty());
    const std::vector<absl::string_view> golds =
        absl::StrSplit(wanted[i], split, absl::SkipEmpty());
    if (words.size() != golds.size()) return false;
    for (size_t j = 0; j < words.size(); ++j) {
      if (!SameWord(words[j], golds[j], float_tol)) return false;
    }
  }
  return true;
}

}  // namespace sluice::code
