#include "common/verifiers/math/units.h"

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace sluice::math {
namespace {

// The base units, by their place in Unit::powers.
enum Base { kLength, kMass, kTime, kAngle, kMoney, kTemperature };

struct UnitRow {
  absl::string_view name;
  Base base;
  int power;
  const char* factor;
};

constexpr UnitRow kUnits[] = {
    {"mm", kLength, 1, "1/1000"},
    {"cm", kLength, 1, "1/100"},
    {"dm", kLength, 1, "1/10"},
    {"m", kLength, 1, "1"},
    {"km", kLength, 1, "1000"},
    {"millimeter", kLength, 1, "1/1000"},
    {"centimeter", kLength, 1, "1/100"},
    {"meter", kLength, 1, "1"},
    {"kilometer", kLength, 1, "1000"},
    {"millimetre", kLength, 1, "1/1000"},
    {"centimetre", kLength, 1, "1/100"},
    {"metre", kLength, 1, "1"},
    {"kilometre", kLength, 1, "1000"},
    {"inch", kLength, 1, "254/10000"},
    {"inches", kLength, 1, "254/10000"},
    {"foot", kLength, 1, "3048/10000"},
    {"feet", kLength, 1, "3048/10000"},
    {"ft", kLength, 1, "3048/10000"},
    {"yard", kLength, 1, "9144/10000"},
    {"mile", kLength, 1, "1609344/1000"},
    {"mg", kMass, 1, "1/1000000"},
    {"g", kMass, 1, "1/1000"},
    {"kg", kMass, 1, "1"},
    {"gram", kMass, 1, "1/1000"},
    {"kilogram", kMass, 1, "1"},
    {"ton", kMass, 1, "1000"},
    {"tonne", kMass, 1, "1000"},
    {"lb", kMass, 1, "45359237/100000000"},
    {"pound", kMass, 1, "45359237/100000000"},
    {"ounce", kMass, 1, "45359237/1600000000"},
    {"oz", kMass, 1, "45359237/1600000000"},
    {"s", kTime, 1, "1"},
    {"sec", kTime, 1, "1"},
    {"second", kTime, 1, "1"},
    {"min", kTime, 1, "60"},
    {"minute", kTime, 1, "60"},
    {"h", kTime, 1, "3600"},
    {"hr", kTime, 1, "3600"},
    {"hour", kTime, 1, "3600"},
    {"day", kTime, 1, "86400"},
    {"week", kTime, 1, "604800"},
    {"month", kTime, 1, "2629746"},
    {"year", kTime, 1, "31556952"},
    {"ml", kLength, 3, "1/1000000"},
    {"cl", kLength, 3, "1/100000"},
    {"l", kLength, 3, "1/1000"},
    {"liter", kLength, 3, "1/1000"},
    {"litre", kLength, 3, "1/1000"},
    {"milliliter", kLength, 3, "1/1000000"},
    {"millilitre", kLength, 3, "1/1000000"},
    {"cup", kLength, 3, "3785411784/16000000000000"},
    {"pint", kLength, 3, "3785411784/8000000000000"},
    {"quart", kLength, 3, "3785411784/4000000000000"},
    {"gallon", kLength, 3, "3785411784/1000000000000"},
    {"hectare", kLength, 2, "10000"},
    {"deg", kAngle, 1, "1"},
    {"degree", kAngle, 1, "1"},
    {"dollar", kMoney, 1, "1"},
    {"usd", kMoney, 1, "1"},
    {"euro", kMoney, 1, "1"},
    {"eur", kMoney, 1, "1"},
    {"yuan", kMoney, 1, "1"},
    {"yen", kMoney, 1, "1"},
    {"rupee", kMoney, 1, "1"},
    {"cent", kMoney, 1, "1/100"},
    {"unit", kMoney, 0, "1"},
};

const UnitRow* FindUnit(absl::string_view word) {
  for (int plural = 0; plural < 2; ++plural) {
    for (const UnitRow& row : kUnits) {
      if (row.name == word) return &row;
    }
    // Short names have no plural: "ms" is not "m".
    if (word.size() < 4 || !absl::ConsumeSuffix(&word, "s")) return nullptr;
  }
  return nullptr;
}

// The exponent that the words "square" and "cubic" stand for.
int ExponentWord(absl::string_view word) {
  if (word == "square" || word == "sq" || word == "squared") return 2;
  return word == "cubic" || word == "cubed" || word == "cu" ? 3 : 0;
}

void Multiply(const UnitRow& row, int exponent, Unit& unit) {
  unit.powers[row.base] += row.power * exponent;
  mpq_class factor(row.factor);
  factor.canonicalize();
  for (int i = exponent < 0 ? -exponent : exponent; i > 0; --i) {
    if (exponent < 0) {
      unit.factor /= factor;
    } else {
      unit.factor *= factor;
    }
  }
}

// Removes a word of letters, or one other character, from the front.
absl::string_view TakeWord(absl::string_view& rest) {
  size_t end = 0;
  while (end < rest.size() && absl::ascii_isalpha(rest[end])) ++end;
  if (end == 0) end = 1;
  const absl::string_view word = rest.substr(0, end);
  rest.remove_prefix(end);
  return word;
}

}  // namespace

bool IsUnitWord(absl::string_view word) {
  return FindUnit(word) != nullptr || ExponentWord(word) != 0;
}

std::optional<Unit> ParseUnit(absl::string_view words) {
  Unit unit;
  int sign = 1, next_exponent = 1;
  bool any = false;
  while (!words.empty()) {
    const absl::string_view word = TakeWord(words);
    if (word == " " || word == "." || word == "*" || word == "{" || word == "}") continue;
    if (word == "/" || word == "per") {
      sign = -1;
      continue;
    }
    if (const int exponent = ExponentWord(word); exponent != 0) {
      next_exponent = exponent;
      continue;
    }

    const UnitRow* const row = FindUnit(word);
    if (row == nullptr) return std::nullopt;
    int exponent = sign * next_exponent;
    if (absl::ConsumePrefix(&words, "^")) {
      absl::ConsumePrefix(&words, "{");
      const bool inverse = absl::ConsumePrefix(&words, "-");
      if (words.empty() || words[0] < '1' || words[0] > '4') return std::nullopt;
      exponent = sign * (inverse ? -1 : 1) * (words[0] - '0');
      words.remove_prefix(1);
    } else if (absl::StartsWith(words, " squared") || absl::StartsWith(words, " cubed")) {
      exponent = sign * (absl::StartsWith(words, " squared") ? 2 : 3);
    }
    Multiply(*row, exponent, unit);
    next_exponent = 1;
    any = true;
  }
  if (!any && next_exponent == 1) return std::nullopt;
  return unit;
}

}  // namespace sluice::math
