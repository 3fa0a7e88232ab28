#include "common/verifiers/math/numeric.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/verifiers/math/rational.h"

namespace sluice::math {
namespace {

constexpr auto kRound = MPFR_RNDN;

// Steps of an elementary function and of a power at 256 bits, which take up to 10 and 20 us.
constexpr int64_t kFunctionCost = 200, kPowerCost = 400;
// Reducing an argument of 2^n by pi costs more the larger n is.
constexpr long kMaxAngleExponent = 512;

bool IsTame(const Complex& x) { return x.re.IsTame() && x.im.IsTame(); }

void WriteKey(const Node& node, std::string& key, Budget& budget) {
  if (!budget.Spend(4)) return;
  absl::StrAppend(&key, static_cast<int>(node.kind), node.name, "[");
  if (node.kind == Kind::kNumber) absl::StrAppend(&key, node.value.get_str());
  for (const Expr& kid : node.kids) WriteKey(*kid, key, budget);
  key.push_back(']');
}

}  // namespace

std::string OpaqueName(const Expr& node, Budget& budget) {
  std::string key;
  WriteKey(*node, key, budget);
  return key;
}

bool Evaluator::Run(const Expr& node, Complex& out) {
  if (!budget_.Spend(10) || !RunKind(node, out)) return false;
  return IsTame(out) && (complex_ || out.IsReal());
}

bool Evaluator::RunKind(const Expr& node, Complex& out) {
  const std::vector<Expr>& kids = node->kids;
  switch (node->kind) {
    case Kind::kNumber:
      if (!budget_.Spend(CountBits(node->value) / 64)) return false;
      out.re = Real(node->value);
      out.im = Real();
      return true;
    case Kind::kSymbol: return Symbol(node->name, out);
    case Kind::kOpaque: return Symbol(OpaqueName(node, budget_), out);
    case Kind::kAdd: return Sum(node, out);
    case Kind::kMultiply: return Product(node, out);
    case Kind::kNegate:
      if (!Run(kids[0], out)) return false;
      mpfr_neg(out.re.get(), out.re.get(), kRound);
      if (!out.IsReal()) mpfr_neg(out.im.get(), out.im.get(), kRound);
      return true;
    case Kind::kRatio:
    case Kind::kDivide: {
      Complex top, bottom;
      return kids.size() == 2 && Run(kids[0], top) && Run(kids[1], bottom) &&
             Divide(top, bottom, out);
    }
    case Kind::kPower: return Power(node, out);
    case Kind::kFunction: return Function(*node, out);
    case Kind::kPercent:
      if (!Run(kids[0], out)) return false;
      mpfr_div_ui(out.re.get(), out.re.get(), 100, kRound);
      if (!out.IsReal()) mpfr_div_ui(out.im.get(), out.im.get(), 100, kRound);
      return true;
    case Kind::kUnit: {
      // Only angles have a value inside of formulas.
      if (node->name != "deg" || !Run(kids[0], out) || !out.IsReal()) return false;
      Real pi;
      mpfr_const_pi(pi.get(), kRound);
      mpfr_mul(out.re.get(), out.re.get(), pi.get(), kRound);
      mpfr_div_ui(out.re.get(), out.re.get(), 180, kRound);
      return true;
    }
    default: return false;
  }
}

bool Evaluator::Symbol(const std::string& name, Complex& out) const {
  out = Complex();
  if (name == "pi") {
    mpfr_const_pi(out.re.get(), kRound);
  } else if (name == "e") {
    mpfr_set_ui(out.re.get(), 1, kRound);
    mpfr_exp(out.re.get(), out.re.get(), kRound);
  } else if (name == "i") {
    mpfr_set_ui(out.im.get(), 1, kRound);
  } else {
    const auto it = point_.find(name);
    if (it == point_.end()) return false;
    out.re = it->second;
  }
  return true;
}

bool Evaluator::Sum(const Expr& node, Complex& out) {
  Complex total, term;
  for (const Expr& kid : node->kids) {
    if (!Run(kid, term)) return false;
    scale_ = std::max({scale_, term.re.Exponent(), term.im.Exponent()});
    mpfr_add(total.re.get(), total.re.get(), term.re.get(), kRound);
    if (!term.IsReal()) mpfr_add(total.im.get(), total.im.get(), term.im.get(), kRound);
  }
  out = total;
  return true;
}

bool Evaluator::Product(const Expr& node, Complex& out) {
  Complex total, factor, next;
  mpfr_set_ui(total.re.get(), 1, kRound);
  for (const Expr& kid : node->kids) {
    if (!Run(kid, factor) || !Multiply(total, factor, next) || !IsTame(next)) return false;
    total = next;
  }
  out = total;
  return true;
}

bool Evaluator::Multiply(const Complex& a, const Complex& b, Complex& out) {
  if (!budget_.Spend(10)) return false;
  Complex product;
  mpfr_mul(product.re.get(), a.re.get(), b.re.get(), kRound);
  if (!a.IsReal() || !b.IsReal()) {
    mpfr_fmms(product.re.get(), a.re.get(), b.re.get(), a.im.get(), b.im.get(), kRound);
    mpfr_fmma(product.im.get(), a.re.get(), b.im.get(), a.im.get(), b.re.get(), kRound);
  }
  out = product;
  return true;
}

bool Evaluator::Divide(const Complex& a, const Complex& b, Complex& out) {
  if (b.IsReal()) {
    if (b.re.IsZero() || !budget_.Spend(10)) return false;
    Complex quotient;
    mpfr_div(quotient.re.get(), a.re.get(), b.re.get(), kRound);
    if (!a.IsReal()) mpfr_div(quotient.im.get(), a.im.get(), b.re.get(), kRound);
    out = quotient;
    return true;
  }
  Complex conjugate = b, product;
  mpfr_neg(conjugate.im.get(), conjugate.im.get(), kRound);
  if (!Multiply(a, conjugate, product)) return false;
  Complex norm;
  mpfr_fmma(norm.re.get(), b.re.get(), b.re.get(), b.im.get(), b.im.get(), kRound);
  return Divide(product, norm, out);
}

bool Evaluator::Exp(const Complex& x, Complex& out) {
  // e^(2^20) has more than a million bits.
  if (x.re.Exponent() > 20 || x.im.Exponent() > kMaxAngleExponent ||
      !budget_.Spend(2 * kFunctionCost))
    return false;
  Complex result;
  mpfr_exp(result.re.get(), x.re.get(), kRound);
  if (!x.IsReal()) {
    Real sine, cosine;
    mpfr_sin_cos(sine.get(), cosine.get(), x.im.get(), kRound);
    mpfr_mul(result.im.get(), result.re.get(), sine.get(), kRound);
    mpfr_mul(result.re.get(), result.re.get(), cosine.get(), kRound);
  }
  out = result;
  return true;
}

bool Evaluator::Log(const Complex& x, Complex& out) {
  if ((x.re.IsZero() && x.im.IsZero()) || !budget_.Spend(2 * kFunctionCost)) return false;
  Complex result;
  if (x.IsReal() && !x.re.IsNegative()) {
    mpfr_log(result.re.get(), x.re.get(), kRound);
  } else {
    if (!complex_) return false;
    Real norm;
    mpfr_hypot(norm.get(), x.re.get(), x.im.get(), kRound);
    mpfr_log(result.re.get(), norm.get(), kRound);
    mpfr_atan2(result.im.get(), x.im.get(), x.re.get(), kRound);
  }
  out = result;
  return true;
}

// base^exponent of a real base. Negative bases have odd roots: (-8)^(1/3) is -2.
bool Evaluator::RealPower(const Real& base, const mpq_class& exponent, Real& out) {
  if (base.IsZero()) {
    if (exponent <= 0) return false;
    out = Real();
    return true;
  }
  // Whoever asks for more than 2^1000000 gets no value.
  const double bits =
      std::abs(exponent.get_d()) * static_cast<double>(std::abs(base.Exponent()) + 1);
  if (!(bits < Real::kMaxExponent) || !budget_.Spend(kPowerCost)) return false;
  const bool odd = mpz_odd_p(exponent.get_den_mpz_t()) != 0;
  if (base.IsNegative() && !odd) return false;
  Real size, power;
  mpfr_abs(size.get(), base.get(), kRound);
  if (exponent.get_den() == 1 && mpz_fits_slong_p(exponent.get_num_mpz_t())) {
    mpfr_pow_si(power.get(), size.get(), exponent.get_num().get_si(), kRound);
  } else {
    const Real real_exponent(exponent);
    mpfr_pow(power.get(), size.get(), real_exponent.get(), kRound);
  }
  if (base.IsNegative() && mpz_odd_p(exponent.get_num_mpz_t()))
    mpfr_neg(power.get(), power.get(), kRound);
  out = power;
  return true;
}

bool Evaluator::Power(const Expr& node, Complex& out) {
  Complex base;
  if (!Run(node->kids[0], base)) return false;
  mpq_class exponent;
  const bool rational = EvaluateRational(node->kids[1], budget_, exponent);
  if (budget_.spent()) return false;
  if (rational && exponent == 0) {
    out = Complex();
    mpfr_set_ui(out.re.get(), 1, kRound);
    return true;
  }
  if (rational && base.IsReal()) {
    Complex power;
    if (RealPower(base.re, exponent, power.re)) {
      out = power;
      return true;
    }
    if (!complex_ || !base.re.IsNegative()) return false;
  }
  // An integer power of a complex number, by multiplication, is exact where it is real.
  if (rational && exponent.get_den() == 1 && abs(exponent) <= 64) {
    Complex power, next;
    mpfr_set_ui(power.re.get(), 1, kRound);
    for (long i = std::abs(exponent.get_num().get_si()); i > 0; --i) {
      if (!Multiply(power, base, next) || !IsTame(next)) return false;
      power = next;
    }
    if (exponent > 0) {
      out = power;
      return true;
    }
    Complex one;
    mpfr_set_ui(one.re.get(), 1, kRound);
    return Divide(one, power, out);
  }

  Complex real_exponent, log, product;
  if (!Run(node->kids[1], real_exponent)) return false;
  if (base.IsReal() && base.re.IsNegative() && real_exponent.IsReal() &&
      mpfr_integer_p(real_exponent.re.get()) && real_exponent.re.Exponent() < 20) {
    const long whole = mpfr_get_si(real_exponent.re.get(), kRound);
    Complex power;
    if (!RealPower(base.re, mpq_class(whole), power.re)) return whole == 0 && false;
    out = power;
    return true;
  }
  if (base.IsReal() && base.re.IsZero()) {
    if (!real_exponent.IsReal() || mpfr_sgn(real_exponent.re.get()) <= 0) return false;
    out = Complex();
    return true;
  }
  return Log(base, log) && Multiply(log, real_exponent, product) && IsTame(product) &&
         Exp(product, out);
}

bool Evaluator::SineOrCosine(const Complex& x, bool sine, Complex& out) {
  if (x.re.Exponent() > kMaxAngleExponent || !budget_.Spend(2 * kFunctionCost)) return false;
  Complex result;
  if (x.IsReal()) {
    (sine ? mpfr_sin : mpfr_cos)(result.re.get(), x.re.get(), kRound);
  } else {
    if (x.im.Exponent() > 20 || !budget_.Spend(2 * kFunctionCost)) return false;
    Real sin_re, cos_re, sinh_im, cosh_im;
    mpfr_sin_cos(sin_re.get(), cos_re.get(), x.re.get(), kRound);
    mpfr_sinh_cosh(sinh_im.get(), cosh_im.get(), x.im.get(), kRound);
    mpfr_mul(result.re.get(), (sine ? sin_re : cos_re).get(), cosh_im.get(), kRound);
    mpfr_mul(result.im.get(), (sine ? cos_re : sin_re).get(), sinh_im.get(), kRound);
    if (!sine) mpfr_neg(result.im.get(), result.im.get(), kRound);
  }
  out = result;
  return true;
}

bool Evaluator::RealFunction(const std::string& name, const Real& x, Real& out) {
  if (!budget_.Spend(2 * kFunctionCost)) return false;
  using Call = int (*)(mpfr_ptr, mpfr_srcptr, mpfr_rnd_t);
  struct Row {
    const char* name;
    Call call;
    bool unit_interval;
  };
  static constexpr Row kRows[] = {{"arcsin", mpfr_asin, true},  {"arccos", mpfr_acos, true},
                                  {"arctan", mpfr_atan, false}, {"sinh", mpfr_sinh, false},
                                  {"cosh", mpfr_cosh, false},   {"tanh", mpfr_tanh, false},
                                  {"arccot", mpfr_atan, false}};
  for (const Row& row : kRows) {
    if (name != row.name) continue;
    if (row.unit_interval && mpfr_cmpabs_ui(x.get(), 1) > 0) return false;
    if (x.Exponent() > 20) return false;
    row.call(out.get(), x.get(), kRound);
    if (name == "arccot") {
      Real half_pi;
      mpfr_const_pi(half_pi.get(), kRound);
      mpfr_div_ui(half_pi.get(), half_pi.get(), 2, kRound);
      mpfr_sub(out.get(), half_pi.get(), out.get(), kRound);
    }
    return true;
  }
  if (name == "abs") {
    mpfr_abs(out.get(), x.get(), kRound);
  } else if (name == "floor" || name == "ceil") {
    // Of a value that is nearly whole, nobody knows which side of it the true one is on.
    Real nearest, distance;
    mpfr_rint(nearest.get(), x.get(), kRound);
    mpfr_sub(distance.get(), x.get(), nearest.get(), kRound);
    if (!distance.IsZero() && distance.Exponent() < -160) {
      out = nearest;
    } else if (name == "floor") {
      mpfr_floor(out.get(), x.get());
    } else {
      mpfr_ceil(out.get(), x.get());
    }
  } else {
    return false;
  }
  return true;
}

// n! between the whole numbers, so that (n+1)! equals (n+1) n!.
bool Evaluator::Factorial(const Expr& n, Complex& out) {
  Complex x;
  if (!Run(n, x) || !x.IsReal() || x.re.IsNegative() || x.re.Exponent() > 10 ||
      !budget_.Spend(10 * kFunctionCost))
    return false;
  Complex result;
  mpfr_add_ui(result.re.get(), x.re.get(), 1, kRound);
  mpfr_gamma(result.re.get(), result.re.get(), kRound);
  out = result;
  return true;
}

bool Evaluator::Function(const Node& node, Complex& out) {
  const std::string& name = node.name;
  if (name == "root") {
    mpq_class index;
    if (!EvaluateRational(node.kids[0], budget_, index) || index == 0 || budget_.spent())
      return false;
    const Expr power = MakeNode(Kind::kPower, "", {node.kids[1], MakeNumber(1 / index)});
    return Power(power, out);
  }
  if (name == "factorial" && HasVariable(node.kids[0])) return Factorial(node.kids[0], out);
  if (name == "factorial" || name == "binom" || name == "gcd" || name == "lcm" || name == "mod" ||
      name == "min" || name == "max") {
    // These have values for rational numbers only.
    mpq_class value;
    const auto whole = std::make_shared<Node>(node);
    if (!EvaluateRational(whole, budget_, value)) return false;
    out = Complex();
    out.re = Real(value);
    return true;
  }

  Complex x;
  if (node.kids.size() != 1 || !Run(node.kids[0], x)) return false;
  if (name == "ln") return Log(x, out);
  if (name == "sin" || name == "cos") return SineOrCosine(x, name == "sin", out);
  if (name == "tan" || name == "cot" || name == "sec" || name == "csc") {
    Complex sine, cosine, one;
    mpfr_set_ui(one.re.get(), 1, kRound);
    if (!SineOrCosine(x, true, sine) || !SineOrCosine(x, false, cosine)) return false;
    const Complex& bottom = name == "tan" || name == "sec" ? cosine : sine;
    // A zero that rounding hides: the function has a pole there.
    if (bottom.re.Exponent() < -200 && bottom.im.Exponent() < -200) return false;
    const Complex& top = name == "tan" ? sine : name == "cot" ? cosine : one;
    return Divide(top, bottom, out);
  }
  if (name == "abs" && !x.IsReal()) {
    Complex size;
    mpfr_hypot(size.re.get(), x.re.get(), x.im.get(), kRound);
    out = size;
    return budget_.Spend(kFunctionCost);
  }
  Complex result;
  if (!x.IsReal() || !RealFunction(name, x.re, result.re)) return false;
  out = result;
  return true;
}

}  // namespace sluice::math
