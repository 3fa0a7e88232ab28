#include "common/verifiers/math/values.h"

#include <optional>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/verifiers/math/canonical.h"
#include "common/verifiers/math/probe.h"
#include "common/verifiers/math/rational.h"
#include "common/verifiers/math/units.h"

namespace sluice::math {
namespace {

constexpr int kMinSignificant = 4;  // A rounded number with fewer digits says too little.

struct Decimal {
  mpq_class value;
  int decimals = 0, significant = 0;
};

// A number that was written with a decimal point, also as 1.25 * 10^-1.
std::optional<Decimal> ReadDecimal(const Expr& node) {
  if (Is(node, Kind::kNegate)) {
    std::optional<Decimal> decimal = ReadDecimal(node->kids[0]);
    if (decimal) decimal->value = -decimal->value;
    return decimal;
  }
  if (Is(node, Kind::kNumber)) {
    if (!node->written.point) return std::nullopt;
    return Decimal{node->value, node->written.decimals, node->written.significant};
  }
  if (!Is(node, Kind::kMultiply) || node->kids.size() != 2) return std::nullopt;
  const Expr &mantissa = node->kids[0], &power = node->kids[1];
  if (!Is(mantissa, Kind::kNumber) || !mantissa->written.point || !Is(power, Kind::kPower))
    return std::nullopt;
  const Expr &base = power->kids[0], &exponent = power->kids[1];
  if (!Is(base, Kind::kNumber) || base->value != 10 || !Is(exponent, Kind::kNumber) ||
      exponent->value.get_den() != 1 || abs(exponent->value) > Budget::kDigits)
    return std::nullopt;
  const long shift = exponent->value.get_num().get_si();
  mpz_class scale;
  mpz_ui_pow_ui(scale.get_mpz_t(), 10, static_cast<unsigned long>(shift < 0 ? -shift : shift));
  Decimal out{mantissa->value, mantissa->written.decimals - static_cast<int>(shift),
              mantissa->written.significant};
  if (shift < 0) {
    out.value /= scale;
  } else {
    out.value *= scale;
  }
  return out;
}

// Whether the side with fewer decimals is the other one, rounded.
bool EqualByRounding(const Expr& a, const Expr& b, Budget& budget) {
  std::optional<Decimal> left = ReadDecimal(a), right = ReadDecimal(b);
  if (!left && !right) return false;
  const bool left_is_rounded = left && (!right || left->decimals <= right->decimals);
  const Decimal& rounded = left_is_rounded ? *left : *right;
  return rounded.significant >= kMinSignificant && rounded.decimals >= 0 &&
         RoundsTo(left_is_rounded ? b : a, rounded.value, rounded.decimals, budget);
}

// The value of the answer, rounded to the gold's decimals, is the gold.
bool EqualToDecimals(const Expr& gold, const Expr& answer, int decimals, Budget& budget) {
  mpq_class value;
  if (HasVariable(answer) || HasVariable(gold)) return false;
  if (EvaluateRational(gold, budget, value) && RoundsTo(answer, value, decimals, budget))
    return true;
  return !budget.spent() && EvaluateRational(answer, budget, value) &&
         RoundsTo(gold, value, decimals, budget);
}

bool EqualNumbers(const Expr& gold, const Expr& answer, const EqualOptions& options,
                  Budget& budget) {
  mpq_class left, right;
  const bool left_rational = EvaluateRational(gold, budget, left);
  const bool right_rational = !budget.spent() && EvaluateRational(answer, budget, right);
  if (budget.spent()) return false;
  if (left_rational && right_rational && left == right) return true;
  if (options.decimals >= 0 && EqualToDecimals(gold, answer, options.decimals, budget)) return true;
  const bool constants = !HasVariable(gold) && !HasVariable(answer);
  if (constants && EqualByRounding(gold, answer, budget)) return true;
  if (left_rational && right_rational) return false;

  switch (CompareCanonically(gold, answer, budget)) {
    case Decision::kEqual: return true;
    case Decision::kDifferent: return false;
    case Decision::kOpen: break;
  }
  return !budget.spent() && EqualByProbes(gold, answer, options.seed, budget);
}

bool ShareWord(absl::string_view a, absl::string_view b) {
  for (absl::string_view left : absl::StrSplit(a, ' ')) {
    absl::ConsumeSuffix(&left, "s");
    for (absl::string_view right : absl::StrSplit(b, ' ')) {
      absl::ConsumeSuffix(&right, "s");
      if (left == right && left.size() > 2) return true;
    }
  }
  return false;
}

// Applies `factor` to a value, which then is no longer a number as it was written.
Expr Scale(const Expr& value, const mpq_class& factor) {
  return factor == 1 ? value : MakeNode(Kind::kMultiply, "", {MakeNumber(factor), value});
}

bool EqualWithUnits(const Expr& gold, const Expr& answer, const EqualOptions& options,
                    Budget& budget) {
  const Expr &left = gold->kids[0], &right = answer->kids[0];
  const std::optional<Unit> left_unit = ParseUnit(gold->name);
  const std::optional<Unit> right_unit = ParseUnit(answer->name);
  if (gold->name == answer->name) return EqualNumbers(left, right, options, budget);
  if (!left_unit && !right_unit) {
    // Words that are no units, such as "apples", only tell what was counted.
    return ShareWord(gold->name, answer->name) && EqualNumbers(left, right, options, budget);
  }
  if (!left_unit || !right_unit) return false;
  if (left_unit->powers == right_unit->powers) {
    const mpq_class factor = right_unit->factor / left_unit->factor;
    return EqualNumbers(left, Scale(right, factor), options, budget);
  }
  // The word "units" is of no dimension.
  const bool without = left_unit->powers == Unit().powers || right_unit->powers == Unit().powers;
  return without && EqualNumbers(left, right, options, budget);
}

}  // namespace

Expr WithoutUnit(const Expr& node) {
  return Is(node, Kind::kUnit) || Is(node, Kind::kPercent) ? WithoutUnit(node->kids[0]) : node;
}

bool EqualValues(const Expr& gold, const Expr& answer, const EqualOptions& options,
                 Budget& budget) {
  const bool left_unit = Is(gold, Kind::kUnit), right_unit = Is(answer, Kind::kUnit);
  if (left_unit && right_unit) return EqualWithUnits(gold, answer, options, budget);
  if (left_unit || right_unit) {
    const Expr& with = left_unit ? gold : answer;
    // 60 degrees are pi/3.
    if (with->name == "deg" && EqualNumbers(gold, answer, options, budget)) return true;
    return EqualValues(left_unit ? gold->kids[0] : gold, right_unit ? answer->kids[0] : answer,
                       options, budget);
  }

  const bool left_percent = Is(gold, Kind::kPercent), right_percent = Is(answer, Kind::kPercent);
  if (left_percent && right_percent)
    return EqualNumbers(gold->kids[0], answer->kids[0], options, budget);
  if (EqualNumbers(gold, answer, options, budget)) return true;
  if (!left_percent && !right_percent) return false;
  return !budget.spent() && EqualNumbers(left_percent ? gold->kids[0] : gold,
                                         right_percent ? answer->kids[0] : answer, options, budget);
}

}  // namespace sluice::math
