#include "common/verifiers/decimal.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr __int128 kLimit = static_cast<__int128>(1) << 96;

__int128 Gcd(__int128 a, __int128 b) {
  while (b != 0) std::swap(a %= b, b);
  return a;
}

// Removes thousands commas. Returns "" if they are misplaced.
std::string RemoveCommas(absl::string_view digits) {
  if (digits.find(',') == absl::string_view::npos) return std::string(digits);
  const std::vector<absl::string_view> groups = absl::StrSplit(digits, ',');
  std::string out;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i == 0 ? groups[i].empty() || groups[i].size() > 3 : groups[i].size() != 3) return "";
    out.append(groups[i].data(), groups[i].size());
  }
  return out;
}

std::optional<Rational> ParseDecimal(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('.', 1));
  const std::string digits = RemoveCommas(parts.first);
  // No digits: the text has none at all, or misplaced commas.
  if (digits.empty() && (parts.second.empty() || !parts.first.empty())) return std::nullopt;
  Rational value;
  for (const absl::string_view run : {absl::string_view(digits), parts.second}) {
    for (const char c : run) {
      if (!absl::ascii_isdigit(c)) return std::nullopt;
      value.numerator = value.numerator * 10 + (c - '0');
      // The second run is the fraction.
      if (run.data() == parts.second.data()) value.denominator *= 10;
      if (value.numerator >= kLimit || value.denominator >= kLimit) return std::nullopt;
    }
  }
  return value;
}

}  // namespace

std::optional<Rational> ParseRational(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  const bool negative = absl::ConsumePrefix(&text, "-");
  if (!negative) absl::ConsumePrefix(&text, "+");
  absl::ConsumePrefix(&text, "$");
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('/', 1));
  std::optional<Rational> value = ParseDecimal(parts.first);
  if (!value) return std::nullopt;

  if (text.find('/') != absl::string_view::npos) {
    const std::optional<Rational> divisor = ParseDecimal(parts.second);
    if (!divisor || divisor->numerator == 0 || value->denominator != 1 || divisor->denominator != 1)
      return std::nullopt;
    value->denominator = divisor->numerator;
  }

  const __int128 common = Gcd(value->numerator, value->denominator);
  value->numerator /= common;
  value->denominator /= common;
  if (negative) value->numerator = -value->numerator;
  SLUICE_CHECK(value->denominator > 0);
  return value;
}

}  // namespace sluice
