#include "common/verifiers/math/probe.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/splitmix.h"
#include "common/verifiers/math/numeric.h"
#include "common/verifiers/math/rational.h"

namespace sluice::math {
namespace {

constexpr int kWanted = 12, kEnough = 8, kTries = 30;
// 1e-50 and 2e-53 as powers of two.
constexpr long kRelativeBits = 166, kAbsoluteBits = 215;
constexpr long kMaxScale = 40;

void CollectNames(const Expr& node, Budget& budget, std::set<std::string>& names) {
  if (!budget.Spend(4)) return;
  if (Is(node, Kind::kSymbol)) {
    if (!IsConstantName(node->name)) names.insert(node->name);
  } else if (Is(node, Kind::kOpaque)) {
    names.insert(OpaqueName(node, budget));
  } else {
    for (const Expr& kid : node->kids) CollectNames(kid, budget, names);
  }
}

bool HasImaginary(const Expr& node) {
  return AnyNode(node, [](const Node& n) { return n.kind == Kind::kSymbol && n.name == "i"; });
}

uint64_t HashName(absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

// A value of a variable at one point: small, medium or large; of either sign at every other point.
double ChooseValue(uint64_t seed, absl::string_view name, int point, bool whole) {
  SplitMix64 random(GroupSeed(seed ^ HashName(name), static_cast<uint64_t>(point)));
  if (whole) return static_cast<double>(1 + random.Below(12));
  constexpr double kLow[] = {0.1, 1, 10}, kWidth[] = {0.9, 9, 90};
  const double size = kLow[point % 3] + kWidth[point % 3] * random.Uniform();
  return point % 2 == 1 && random.Below(2) == 0 ? -size : size;
}

// Whether the two values are equal as far as 256 bits tell.
bool Same(const Complex& a, const Complex& b, long scale) {
  Real re, im;
  mpfr_sub(re.get(), a.re.get(), b.re.get(), MPFR_RNDN);
  mpfr_sub(im.get(), a.im.get(), b.im.get(), MPFR_RNDN);
  const long difference = std::max(re.Exponent(), im.Exponent());
  const long size = std::max({a.re.Exponent(), a.im.Exponent(), b.re.Exponent(), b.im.Exponent()});
  // Where large summands cancel, the rest is only known to a part of them. The limit keeps an
  // answer from hiding its error behind summands that it made large itself.
  return difference <= size - kRelativeBits ||
         difference <= std::min(scale, kMaxScale) - kAbsoluteBits;
}

struct Values {
  Complex a, b;
  long scale;
};

// Evaluates both formulas at points where the first has a value. Returns fewer values than wanted
// if there are no such points, and none if the second has no value at one of them.
class Prober {
 public:
  Prober(const Expr& a, const Expr& b, uint64_t seed, Budget& budget)
      : a_(a), b_(b), seed_(seed), budget_(budget) {
    CollectNames(a, budget, names_);
    CollectNames(b, budget, names_);
    complex_ = names_.empty() || HasImaginary(a) || HasImaginary(b);
  }

  // Calls `check` for each point; stops with false as soon as it returns false.
  template <typename Check>
  bool ForEachPoint(const Check& check) {
    const int wanted = names_.empty() ? 1 : kWanted, enough = names_.empty() ? 1 : kEnough;
    for (const bool whole : {false, true}) {
      int defined = 0;
      for (int point = 0; point < (names_.empty() ? 1 : kTries) && defined < wanted; ++point) {
        switch (Try(point, whole, check)) {
          case Outcome::kUndefined: break;
          case Outcome::kPassed: ++defined; break;
          case Outcome::kFailed: return false;
        }
      }
      if (defined >= enough) return true;
      // At some points the formula has a value, at most it has none: it is not one for integers.
      if (defined > 0 || names_.empty()) return false;
    }
    return false;
  }

 private:
  enum class Outcome { kUndefined, kPassed, kFailed };

  template <typename Check>
  Outcome Try(int point, bool whole, const Check& check) {
    if (!budget_.Spend(20 * static_cast<int64_t>(1 + names_.size()))) return Outcome::kFailed;
    Point values;
    for (const std::string& name : names_)
      values.emplace(name, Real(ChooseValue(seed_, name, point, whole)));
    Values both;
    Evaluator first(values, complex_, budget_), second(values, complex_, budget_);
    if (!first.Run(a_, both.a)) return budget_.spent() ? Outcome::kFailed : Outcome::kUndefined;
    if (!second.Run(b_, both.b)) return Outcome::kFailed;
    both.scale = std::max(first.scale(), second.scale());
    return check(both) ? Outcome::kPassed : Outcome::kFailed;
  }

  const Expr &a_, &b_;
  const uint64_t seed_;
  Budget& budget_;
  std::set<std::string> names_;
  bool complex_ = false;
};

// c = a / b at the first point with b != 0; then a = c b.
class Proportion {
 public:
  explicit Proportion(bool positive) : positive_(positive) {}

  bool Check(const Values& values) {
    const bool a_zero = IsZero(values.a, values.scale), b_zero = IsZero(values.b, values.scale);
    if (a_zero || b_zero) return a_zero && b_zero;
    Real product;
    if (!known_) {
      if (!values.a.IsReal() || !values.b.IsReal()) return false;
      mpfr_div(factor_.get(), values.a.re.get(), values.b.re.get(), MPFR_RNDN);
      known_ = true;
      return !positive_ || !factor_.IsNegative();
    }
    Complex scaled;
    mpfr_mul(scaled.re.get(), values.b.re.get(), factor_.get(), MPFR_RNDN);
    return values.a.IsReal() && values.b.IsReal() && Same(values.a, scaled, values.scale);
  }
  bool known() const { return known_; }

 private:
  static bool IsZero(const Complex& value, long scale) { return Same(value, Complex(), scale); }

  const bool positive_;
  bool known_ = false;
  Real factor_;
};

}  // namespace

bool EqualByProbes(const Expr& a, const Expr& b, uint64_t seed, Budget& budget) {
  return Prober(a, b, seed, budget).ForEachPoint([](const Values& values) {
    return Same(values.a, values.b, values.scale);
  });
}

bool ProportionalByProbes(const Expr& a, const Expr& b, bool positive, uint64_t seed,
                          Budget& budget) {
  Proportion proportion(positive);
  return Prober(a, b, seed, budget).ForEachPoint([&](const Values& values) {
    return proportion.Check(values);
  }) && proportion.known();
}

bool RoundsTo(const Expr& exact, const mpq_class& rounded, int decimals, Budget& budget) {
  if (decimals < 0 || decimals > Budget::kDigits) return false;
  mpz_class power;
  mpz_ui_pow_ui(power.get_mpz_t(), 10, static_cast<unsigned long>(decimals));
  const mpq_class half(1, 2 * power);
  mpq_class value;
  if (EvaluateRational(exact, budget, value)) {
    if (!budget.Spend(1 + CountBits(value) / 8)) return false;
    const mpq_class distance = abs(value - rounded);
    if (distance != half) return distance < half;
    // Half up goes away from zero; half to even has an even last digit.
    const mpq_class last = rounded * power;
    return abs(rounded) > abs(value) || mpz_even_p(last.get_num_mpz_t());
  }
  if (budget.spent()) return false;
  Complex number;
  const Point nowhere;
  if (!Evaluator(nowhere, /*complex=*/true, budget).Run(exact, number) || !number.IsReal())
    return false;
  // An irrational number is not halfway.
  Real distance = number.re;
  mpfr_sub_q(distance.get(), number.re.get(), rounded.get_mpq_t(), MPFR_RNDN);
  mpfr_abs(distance.get(), distance.get(), MPFR_RNDN);
  return mpfr_cmp_q(distance.get(), half.get_mpq_t()) < 0;
}

}  // namespace sluice::math
