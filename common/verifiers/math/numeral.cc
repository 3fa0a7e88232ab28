#include "common/verifiers/math/numeral.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace sluice::math {
namespace {

size_t CountDigits(absl::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && absl::ascii_isdigit(text[end])) ++end;
  return end - at;
}

// What may separate groups of three digits. A comma of LaTeX lists is followed by a space; "\!"
// takes the space away.
constexpr absl::string_view kSeparators[] = {",\\!", "{,}", "\\,", "\\ ", ",", " "};

// The length of the separator at `at` with the spaces that belong to it, or 0 if it is another.
size_t MatchSeparator(absl::string_view text, size_t at, absl::string_view separator) {
  if (!absl::StartsWith(text.substr(at), separator)) return 0;
  size_t end = at + separator.size();
  if (separator == ",\\!") {
    while (end < text.size() && text[end] == ' ') ++end;
  }
  return end - at;
}

// Appends the groups of three digits behind the first `digits`, if they are separated alike.
size_t ReadGroups(absl::string_view text, size_t at, absl::string_view separator,
                  std::string& digits) {
  std::string groups;
  for (;;) {
    const size_t length = MatchSeparator(text, at, separator);
    const size_t count = length == 0 ? 0 : CountDigits(text, at + length);
    // A group of another length shows that the separators did not mean thousands. Digits behind a
    // space may be the next factor.
    if (count == 0) break;
    if (count != 3) return 0;
    absl::StrAppend(&groups, text.substr(at + length, 3));
    at += length + 3;
  }
  if (groups.empty()) return 0;
  digits += groups;
  return at;
}

void ReadThousands(absl::string_view text, const NumeralStyle& style, size_t& at,
                   std::string& digits) {
  if (digits.size() > 3 || digits.empty() || digits[0] == '0') return;
  for (const absl::string_view separator : kSeparators) {
    // 1,000 is a number even in (1,000): no element of a list would be written 000.
    if (separator == "," && style.comma != Comma::kThousands &&
        (style.comma == Comma::kDecimal || text.substr(at, 2) != ",0"))
      continue;
    const size_t end = ReadGroups(text, at, separator, digits);
    if (end != 0) {
      at = end;
      return;
    }
  }
}

// Reads the point or decimal comma before digits, and returns whether there was one.
bool ReadPoint(absl::string_view text, const NumeralStyle& style, absl::string_view digits,
               size_t& at) {
  const absl::string_view rest = text.substr(at);
  const auto digit_at = [&](size_t place) {
    return place < rest.size() && absl::ascii_isdigit(rest[place]);
  };
  if (absl::StartsWith(rest, ".") && (digit_at(1) || absl::StartsWith(rest, ".\\overline"))) {
    ++at;
    return true;
  }
  if (absl::StartsWith(rest, "{,}") && digit_at(3)) {
    at += 3;
    return true;
  }
  if (absl::StartsWith(rest, ",") && digit_at(1)) {
    const bool sure = style.only_comma && style.comma == Comma::kThousands &&
                      (digits.size() >= 4 || (digits == "0" && digit_at(2)));
    if (sure || style.comma == Comma::kDecimal) {
      ++at;
      return true;
    }
  }
  return false;
}

// Reads e-3 behind a number. Returns 0 if there is none.
long ReadExponent(absl::string_view text, size_t& at) {
  size_t place = at;
  if (place >= text.size() || (text[place] != 'e' && text[place] != 'E')) return 0;
  ++place;
  const bool negative = place < text.size() && text[place] == '-';
  if (place < text.size() && (text[place] == '-' || text[place] == '+')) ++place;
  const size_t count = CountDigits(text, place);
  if (count == 0 || count > 4) return 0;
  const long value = std::atol(std::string(text.substr(place, count)).c_str());
  at = place + count;
  return negative ? -value : value;
}

mpz_class PowerOfTen(unsigned long exponent) {
  mpz_class out;
  mpz_ui_pow_ui(out.get_mpz_t(), 10, exponent);
  return out;
}

// Adds the digits of \overline{..}, which repeat for ever, to the fraction.
void ReadRepeating(absl::string_view text, size_t& at, Token& token) {
  absl::string_view rest = text.substr(at);
  if (!absl::ConsumePrefix(&rest, "\\overline{")) return;
  const size_t count = CountDigits(rest, 0);
  if (count == 0 || count > 50 || rest.substr(count, 1) != "}") return;
  const mpz_class repeated(std::string(rest.substr(0, count)), 10);
  const mpz_class ones = PowerOfTen(count) - 1;
  mpq_class part(repeated, ones * PowerOfTen(static_cast<unsigned long>(token.written.decimals)));
  part.canonicalize();
  token.value += part;
  token.written = {};  // It is exact.
  at += absl::string_view("\\overline{").size() + count + 1;
}

int CountSignificant(absl::string_view digits) {
  const size_t first = digits.find_first_not_of('0');
  return first == absl::string_view::npos ? 0 : static_cast<int>(digits.size() - first);
}

}  // namespace

std::optional<Token> ReadNumeral(absl::string_view text, const NumeralStyle& style, size_t& at,
                                 Budget& budget) {
  Token token{.type = Token::Type::kNumber};
  std::string digits(text.substr(at, CountDigits(text, at)));
  at += digits.size();
  ReadThousands(text, style, at, digits);
  if (ReadPoint(text, style, digits, at)) {
    const size_t count = CountDigits(text, at);
    absl::StrAppend(&digits, text.substr(at, count));
    at += count;
    token.written = {.decimals = static_cast<int>(count), .point = true};
  }
  // The value of 1000 digits costs about as much as reading them.
  if (digits.size() > Budget::kDigits || !budget.Spend(1 + static_cast<int64_t>(digits.size()))) {
    budget.GiveUp();
    return std::nullopt;
  }

  token.text = digits;
  token.written.significant = CountSignificant(digits);
  token.value = mpq_class(mpz_class(digits.empty() ? "0" : digits, 10));
  if (token.written.decimals > 0) {
    token.value.get_den() = PowerOfTen(static_cast<unsigned long>(token.written.decimals));
    token.value.canonicalize();
  }
  ReadRepeating(text, at, token);

  if (const long exponent = ReadExponent(text, at); exponent != 0) {
    if (std::abs(exponent) > Budget::kDigits) {
      budget.GiveUp();
      return std::nullopt;
    }
    const mpq_class power(PowerOfTen(static_cast<unsigned long>(std::abs(exponent))));
    token.value = exponent > 0 ? mpq_class(token.value * power) : mpq_class(token.value / power);
    token.written.decimals -= static_cast<int>(exponent);
    token.text.clear();
  }
  return token;
}

}  // namespace sluice::math
