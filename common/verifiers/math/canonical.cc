#include "common/verifiers/math/canonical.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/verifiers/math/rational.h"

namespace sluice::math {
namespace {

constexpr size_t kMaxMonomials = 4096;
constexpr int kMaxExponent = 64;  // Of a power that is multiplied out.
constexpr int kImaginary = 0;     // The atom i.

Polynomial Constant(const mpq_class& value) {
  return value == 0 ? Polynomial() : Polynomial{{Monomial(), value}};
}

bool AddTo(Polynomial& sum, const Monomial& monomial, const mpq_class& value, Budget& budget) {
  if (!budget.Spend(12 + 2 * static_cast<int64_t>(monomial.size()))) return false;
  mpq_class& place = sum[monomial];
  mpq_class next;
  if (!AddRationals(place, value, budget, next)) return false;
  place = next;
  if (place == 0) sum.erase(monomial);
  return sum.size() <= kMaxMonomials;
}

bool Add(const Polynomial& a, const Polynomial& b, Budget& budget, Polynomial& out) {
  out = a;
  if (!budget.Spend(4 * static_cast<int64_t>(a.size()))) return false;
  for (const auto& [monomial, value] : b) {
    if (!AddTo(out, monomial, value, budget)) return false;
  }
  return true;
}

// The product of two monomials; the sign of i^2 goes to `negative`.
Monomial MultiplyMonomials(const Monomial& a, const Monomial& b, bool& negative) {
  Monomial out;
  size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    if (j == b.size() || (i < a.size() && a[i].first < b[j].first)) {
      out.push_back(a[i++]);
    } else if (i == a.size() || b[j].first < a[i].first) {
      out.push_back(b[j++]);
    } else {
      out.emplace_back(a[i].first, a[i].second + b[j].second);
      ++i;
      ++j;
    }
  }
  negative = false;
  if (!out.empty() && out[0].first == kImaginary) {
    negative = out[0].second % 4 >= 2;
    if (out[0].second % 2 == 0) {
      out.erase(out.begin());
    } else {
      out[0].second = 1;
    }
  }
  return out;
}

bool Multiply(const Polynomial& a, const Polynomial& b, Budget& budget, Polynomial& out) {
  out.clear();
  for (const auto& [left, left_value] : a) {
    for (const auto& [right, right_value] : b) {
      // Pays for the merge of the monomials, which are no longer than the formula.
      if (!budget.Spend(4 + static_cast<int64_t>(left.size() + right.size()))) return false;
      bool negative = false;
      const Monomial monomial = MultiplyMonomials(left, right, negative);
      if (std::any_of(monomial.begin(), monomial.end(),
                      [](const auto& power) { return power.second > (1 << 20); }))
        return false;
      mpq_class value;
      if (!MultiplyRationals(left_value, right_value, budget, value)) return false;
      if (negative) value = -value;
      if (!AddTo(out, monomial, value, budget)) return false;
    }
  }
  return true;
}

bool MultiplyFractions(const Fraction& a, const Fraction& b, Budget& budget, Fraction& out) {
  return Multiply(a.over, b.over, budget, out.over) &&
         Multiply(a.under, b.under, budget, out.under);
}

bool AddFractions(const Fraction& a, const Fraction& b, Budget& budget, Fraction& out) {
  if (a.under == b.under) {
    out.under = a.under;
    return Add(a.over, b.over, budget, out.over);
  }
  Polynomial left, right;
  return Multiply(a.over, b.under, budget, left) && Multiply(b.over, a.under, budget, right) &&
         Add(left, right, budget, out.over) && Multiply(a.under, b.under, budget, out.under);
}

bool Invert(Fraction& fraction) {
  std::swap(fraction.over, fraction.under);
  return !fraction.under.empty();  // Else a division by zero.
}

class Canonizer {
 public:
  Canonizer(Atoms& atoms, Budget& budget) : atoms_(atoms), budget_(budget) {}

  bool Run(const Expr& node, Fraction& out) {
    if (!budget_.Spend(8)) return false;
    out.under = Constant(1);
    switch (node->kind) {
      case Kind::kNumber: out.over = Constant(node->value); return true;
      case Kind::kSymbol:
      case Kind::kOpaque: return MakeAtom(node, out);
      case Kind::kNegate:
        if (!Run(node->kids[0], out)) return false;
        for (auto& [unused, value] : out.over) value = -value;
        return true;
      case Kind::kPercent: {
        Fraction whole;
        const Fraction hundredth = {.over = Constant(mpq_class(1, 100)), .under = Constant(1)};
        return Run(node->kids[0], whole) && MultiplyFractions(whole, hundredth, budget_, out);
      }
      case Kind::kAdd:
      case Kind::kMultiply: return Fold(node, out);
      case Kind::kRatio:
      case Kind::kDivide: {
        if (node->kids.size() != 2) return false;
        Fraction top, bottom;
        return Run(node->kids[0], top) && Run(node->kids[1], bottom) && Invert(bottom) &&
               MultiplyFractions(top, bottom, budget_, out);
      }
      case Kind::kPower: return Power(node, out);
      case Kind::kFunction: {
        mpq_class value;
        if (EvaluateRational(node, budget_, value)) {
          out.over = Constant(value);
          return true;
        }
        mpq_class index;
        if (node->name == "root" && EvaluateRational(node->kids[0], budget_, index) &&
            index.get_den() == 1 && index > 1 && index <= kMaxExponent)
          return RootPower(node->kids[1], 1 / index, out);
        return !budget_.spent() && MakeAtom(node, out);
      }
      default: return false;
    }
  }

  // Writes the formula in a form that equal formulas mostly share.
  bool Key(const Expr& node, std::string& key) {
    if (!budget_.Spend(8)) return false;
    if (Is(node, Kind::kSymbol) || Is(node, Kind::kText)) {
      absl::StrAppend(&key, node->name, ".");
      return true;
    }
    Fraction fraction;
    if (!Run(node, fraction)) return StructureKey(node, key);
    WriteKey(fraction, key);
    return budget_.Spend(static_cast<int64_t>(key.size()) / 8);
  }

 private:
  // Writes the kind of the node and the keys of its children.
  bool StructureKey(const Expr& node, std::string& key) {
    absl::StrAppend(&key, static_cast<int>(node->kind), node->name, "[");
    for (const Expr& kid : node->kids) {
      if (!Key(kid, key)) return false;
      key.push_back(',');
    }
    key.push_back(']');
    return budget_.Spend(static_cast<int64_t>(key.size()) / 8);
  }

  bool MakeAtom(const Expr& node, Fraction& out) {
    // The key of a variable is its name, which has no brackets.
    std::string key = Is(node, Kind::kSymbol) ? node->name : "";
    if (key.empty() && !StructureKey(node, key)) return false;
    out.over = {{Monomial{{atoms_.Find(key), 1}}, 1}};
    return true;
  }

  // The power of a root: base^(p/q) is the p-th power of an atom, negative p in the denominator.
  bool RootPower(const Expr& base, const mpq_class& exponent, Fraction& out) {
    std::string key = absl::StrCat("root", exponent.get_den().get_str(), "[");
    if (!Key(base, key)) return false;
    key.push_back(']');
    const int power = static_cast<int>(std::abs(exponent.get_num().get_si()));
    out.over = {{Monomial{{atoms_.Find(key), power}}, 1}};
    if (exponent < 0) std::swap(out.over, out.under);
    return true;
  }

  bool Fold(const Expr& node, Fraction& out) {
    const bool add = Is(node, Kind::kAdd);
    Fraction total = {.over = Constant(add ? 0 : 1), .under = Constant(1)}, part, next;
    for (const Expr& kid : node->kids) {
      if (!Run(kid, part)) return false;
      if (!(add ? AddFractions : MultiplyFractions)(total, part, budget_, next)) return false;
      std::swap(total, next);
    }
    out = std::move(total);
    return true;
  }

  bool Power(const Expr& node, Fraction& out) {
    mpq_class value;
    if (EvaluateRational(node, budget_, value)) {
      out.over = Constant(value);
      return true;
    }
    mpq_class exponent;
    const bool rational = EvaluateRational(node->kids[1], budget_, exponent);
    if (budget_.spent()) return false;
    if (!rational || abs(exponent) > kMaxExponent || exponent.get_den() > kMaxExponent ||
        abs(exponent.get_num()) > kMaxExponent)
      return MakeAtom(node, out);
    if (exponent.get_den() != 1) return RootPower(node->kids[0], exponent, out);
    Fraction base;
    if (!Run(node->kids[0], base)) return false;
    if (exponent < 0 && !Invert(base)) return false;
    Fraction power = {.over = Constant(1), .under = Constant(1)}, next;
    for (long i = std::abs(exponent.get_num().get_si()); i > 0; --i) {
      if (!MultiplyFractions(power, base, budget_, next)) return false;
      std::swap(power, next);
    }
    out = std::move(power);
    return true;
  }

  static void WritePolynomial(const Polynomial& polynomial, const mpq_class& scale,
                              std::string& key) {
    for (const auto& [monomial, value] : polynomial) {
      absl::StrAppend(&key, "+", mpq_class(value / scale).get_str());
      for (const auto& [atom, exponent] : monomial) absl::StrAppend(&key, "a", atom, "^", exponent);
    }
  }
  static void WriteKey(const Fraction& fraction, std::string& key) {
    const mpq_class& scale = fraction.under.begin()->second;
    WritePolynomial(fraction.over, scale, key);
    key.push_back('/');
    WritePolynomial(fraction.under, scale, key);
  }

  Atoms& atoms_;
  Budget& budget_;
};

bool OnlyVariables(const Expr& node) {
  return !AnyNode(node, [](const Node& n) {
    return n.kind == Kind::kOpaque || n.kind == Kind::kFunction ||
           (n.kind == Kind::kPower && !Is(n.kids[1], Kind::kNumber)) ||
           (n.kind == Kind::kPower && n.kids[1]->value.get_den() != 1) ||
           (n.kind == Kind::kSymbol && n.name != "i" && IsConstantName(n.name));
  });
}

}  // namespace

std::optional<Fraction> MakeFraction(const Expr& node, Atoms& atoms, Budget& budget) {
  Fraction out;
  if (!Canonizer(atoms, budget).Run(node, out)) return std::nullopt;
  return out;
}

Decision CompareCanonically(const Expr& a, const Expr& b, Budget& budget) {
  Atoms atoms;
  const std::optional<Fraction> left = MakeFraction(a, atoms, budget);
  const std::optional<Fraction> right = left ? MakeFraction(b, atoms, budget) : std::nullopt;
  if (!right) {
    // Formulas that are no rational functions, such as matrices in a sum, may have equal keys.
    return Decision::kOpen;
  }
  Polynomial one, other;
  if (!Multiply(left->over, right->under, budget, one) ||
      !Multiply(right->over, left->under, budget, other))
    return Decision::kOpen;
  if (one == other) return Decision::kEqual;
  return OnlyVariables(a) && OnlyVariables(b) ? Decision::kDifferent : Decision::kOpen;
}

}  // namespace sluice::math
