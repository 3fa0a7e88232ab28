#include "common/verifiers/math/rational.h"

#include <algorithm>

namespace sluice::math {
namespace {

constexpr unsigned long kMaxFactorial = 3000;

// The cost of one operation on numbers of so many bits: products and common divisors take a time
// that grows with the square.
int64_t CostOf(int64_t bits) {
  const int64_t limbs = bits / 64;
  return 4 + limbs + limbs * limbs / 32;
}

bool Pay(int64_t bits, Budget& budget) {
  if (bits > 4 * Budget::kRationalBits) return budget.GiveUp();
  return budget.Spend(CostOf(bits));
}

bool CheckSize(const mpq_class& value, Budget& budget) {
  return CountBits(value) <= 2 * Budget::kRationalBits || budget.GiveUp();
}

bool IsInteger(const mpq_class& value) { return value.get_den() == 1; }

// The root of an integer if it is exact.
bool ExactRoot(const mpz_class& value, unsigned long index, Budget& budget, mpz_class& out) {
  if (!Pay(static_cast<int64_t>(mpz_sizeinbase(value.get_mpz_t(), 2)), budget)) return false;
  if (value < 0 && index % 2 == 0) return false;
  return mpz_root(out.get_mpz_t(), value.get_mpz_t(), index) != 0;
}

bool RootOf(const mpq_class& value, unsigned long index, Budget& budget, mpq_class& out) {
  mpz_class top, bottom;
  if (!ExactRoot(value.get_num(), index, budget, top) ||
      !ExactRoot(value.get_den(), index, budget, bottom))
    return false;
  out = mpq_class(top, bottom);
  return true;
}

// base^exponent of rational numbers, if it is rational.
bool PowerOf(const mpq_class& base, const mpq_class& exponent, Budget& budget, mpq_class& out) {
  if (IsInteger(exponent)) return RaiseRational(base, exponent.get_num(), budget, out);
  if (exponent.get_den() > 64) return false;
  mpq_class root;
  return RootOf(base, exponent.get_den().get_ui(), budget, root) &&
         RaiseRational(root, exponent.get_num(), budget, out);
}

bool SmallNatural(const mpq_class& value, unsigned long limit) {
  return IsInteger(value) && value >= 0 && value <= limit;
}

bool Factorial(const mpq_class& n, Budget& budget, mpq_class& out) {
  if (!IsInteger(n) || n < 0) return false;
  if (n > kMaxFactorial) return budget.GiveUp();
  // n! has about n log2(n) bits.
  if (!Pay(12 * static_cast<int64_t>(n.get_num().get_ui()), budget)) return false;
  mpz_class value;
  mpz_fac_ui(value.get_mpz_t(), n.get_num().get_ui());
  out = mpq_class(value);
  return true;
}

bool Binomial(const mpq_class& n, const mpq_class& k, Budget& budget, mpq_class& out) {
  if (!IsInteger(n) || !IsInteger(k) || n < 0 || k < 0) return false;
  if (k > n) {
    out = 0;
    return true;
  }
  if (!SmallNatural(n, kMaxFactorial)) return budget.GiveUp();
  if (!Pay(12 * static_cast<int64_t>(n.get_num().get_ui()), budget)) return false;
  mpz_class value;
  mpz_bin_ui(value.get_mpz_t(), n.get_num().get_mpz_t(), k.get_num().get_ui());
  out = mpq_class(value);
  return true;
}

bool ApplyFunction(const Node& node, const std::vector<mpq_class>& values, Budget& budget,
                   mpq_class& out) {
  const std::string& name = node.name;
  int64_t bits = 0;
  for (const mpq_class& value : values) bits += CountBits(value);
  if (!Pay(bits, budget)) return false;

  if (name == "root") {
    return values[0] != 0 && SmallNatural(values[0], 64) &&
           RootOf(values[1], values[0].get_num().get_ui(), budget, out);
  }
  if (name == "factorial") return Factorial(values[0], budget, out);
  if (name == "binom") return Binomial(values[0], values[1], budget, out);
  if (name == "abs") {
    out = abs(values[0]);
  } else if (name == "floor" || name == "ceil") {
    mpz_class whole;
    const auto divide = name == "floor" ? mpz_fdiv_q : mpz_cdiv_q;
    divide(whole.get_mpz_t(), values[0].get_num_mpz_t(), values[0].get_den_mpz_t());
    out = mpq_class(whole);
  } else if (name == "min" || name == "max") {
    out = name == "min" ? *std::min_element(values.begin(), values.end())
                        : *std::max_element(values.begin(), values.end());
  } else if (name == "gcd" || name == "lcm" || name == "mod") {
    mpz_class result = values[0].get_num();
    for (size_t i = 0; i < values.size(); ++i) {
      if (!IsInteger(values[i])) return false;
      if (i == 0) continue;
      const mpz_class& next = values[i].get_num();
      if (name == "mod" && next == 0) return false;
      if (name == "gcd") result = gcd(result, next);
      if (name == "lcm") result = lcm(result, next);
      if (name == "mod") mpz_mod(result.get_mpz_t(), result.get_mpz_t(), next.get_mpz_t());
    }
    out = mpq_class(result);
  } else {
    return false;
  }
  return CheckSize(out, budget);
}

}  // namespace

int64_t CountBits(const mpq_class& value) {
  return static_cast<int64_t>(mpz_sizeinbase(value.get_num_mpz_t(), 2) +
                              mpz_sizeinbase(value.get_den_mpz_t(), 2));
}

bool AddRationals(const mpq_class& a, const mpq_class& b, Budget& budget, mpq_class& out) {
  if (!Pay(CountBits(a) + CountBits(b), budget)) return false;
  out = a + b;
  return CheckSize(out, budget);
}

bool MultiplyRationals(const mpq_class& a, const mpq_class& b, Budget& budget, mpq_class& out) {
  if (!Pay(CountBits(a) + CountBits(b), budget)) return false;
  out = a * b;
  return CheckSize(out, budget);
}

bool RaiseRational(const mpq_class& base, const mpz_class& exponent, Budget& budget,
                   mpq_class& out) {
  if (base == 0 && exponent <= 0) {
    out = 1;
    return exponent == 0;
  }
  if (base == 1 || base == 0 || exponent == 0) {
    out = exponent == 0 ? mpq_class(1) : base;
    return true;
  }
  if (base == -1) {
    out = mpz_even_p(exponent.get_mpz_t()) ? 1 : -1;
    return true;
  }
  if (!mpz_fits_sint_p(exponent.get_mpz_t())) return budget.GiveUp();
  const unsigned long times = mpz_class(abs(exponent)).get_ui();
  const int64_t bits = CountBits(base) * static_cast<int64_t>(times);
  if (bits > 2 * Budget::kRationalBits) return budget.GiveUp();
  if (!Pay(bits, budget)) return false;
  mpz_class top, bottom;
  mpz_pow_ui(top.get_mpz_t(), base.get_num_mpz_t(), times);
  mpz_pow_ui(bottom.get_mpz_t(), base.get_den_mpz_t(), times);
  out = exponent > 0 ? mpq_class(top, bottom) : mpq_class(bottom, top);
  if (exponent < 0) out.canonicalize();  // The sign belongs above.
  return true;
}

bool EvaluateRational(const Expr& node, Budget& budget, mpq_class& out) {
  if (!budget.Spend(4)) return false;
  const std::vector<Expr>& kids = node->kids;
  switch (node->kind) {
    case Kind::kNumber: out = node->value; return true;
    case Kind::kAdd:
    case Kind::kMultiply: {
      const bool add = node->kind == Kind::kAdd;
      mpq_class total = add ? 0 : 1, value, next;
      for (const Expr& kid : kids) {
        if (!EvaluateRational(kid, budget, value)) return false;
        if (!(add ? AddRationals : MultiplyRationals)(total, value, budget, next)) return false;
        swap(total, next);
      }
      out = total;
      return true;
    }
    case Kind::kDivide: {
      mpq_class top, bottom;
      if (!EvaluateRational(kids[0], budget, top) || !EvaluateRational(kids[1], budget, bottom) ||
          bottom == 0)
        return false;
      return MultiplyRationals(top, 1 / bottom, budget, out);
    }
    case Kind::kRatio: {
      if (kids.size() != 2) return false;
      mpq_class top, bottom;
      if (!EvaluateRational(kids[0], budget, top) || !EvaluateRational(kids[1], budget, bottom) ||
          bottom == 0)
        return false;
      return MultiplyRationals(top, 1 / bottom, budget, out);
    }
    case Kind::kPower: {
      mpq_class base, exponent;
      return EvaluateRational(kids[0], budget, base) &&
             EvaluateRational(kids[1], budget, exponent) && PowerOf(base, exponent, budget, out);
    }
    case Kind::kNegate:
      if (!EvaluateRational(kids[0], budget, out)) return false;
      out = -out;
      return true;
    case Kind::kPercent: {
      mpq_class value;
      return EvaluateRational(kids[0], budget, value) &&
             MultiplyRationals(value, mpq_class(1, 100), budget, out);
    }
    case Kind::kFunction: {
      std::vector<mpq_class> values;
      for (const Expr& kid : kids) {
        if (!EvaluateRational(kid, budget, values.emplace_back())) return false;
      }
      return !values.empty() && ApplyFunction(*node, values, budget, out);
    }
    default: return false;
  }
}

}  // namespace sluice::math
