#pragma once

#include <map>
#include <string>

#include "common/verifiers/math/budget.h"
#include "common/verifiers/math/expr.h"
#include "common/verifiers/math/real.h"

namespace sluice::math {

// A complex number. `im` is exactly zero for a real one.
struct Complex {
  Real re, im;

  bool IsReal() const { return im.IsZero(); }
};

// Values of the variables (by name) and of what is opaque (by its key).
using Point = std::map<std::string, Real>;

// Computes a formula at a point. `complex` allows results that are not real, of roots, logarithms
// and powers; otherwise the formula has no value there. Odd roots of negative numbers are real.
class Evaluator {
 public:
  Evaluator(const Point& point, bool complex, Budget& budget)
      : point_(point), complex_(complex), budget_(budget) {}

  // Returns false if the formula has no value, or a huge one, or is over the budget.
  bool Run(const Expr& node, Complex& out);

  // The largest exponent of two of a summand so far: results are only good to about 2^(it - 240).
  long scale() const { return scale_; }

 private:
  bool RunKind(const Expr& node, Complex& out);
  bool Sum(const Expr& node, Complex& out);
  bool Product(const Expr& node, Complex& out);
  bool Power(const Expr& node, Complex& out);
  bool Function(const Node& node, Complex& out);
  bool Factorial(const Expr& n, Complex& out);
  bool RealFunction(const std::string& name, const Real& x, Real& out);
  bool Symbol(const std::string& name, Complex& out) const;

  bool Multiply(const Complex& a, const Complex& b, Complex& out);
  bool Divide(const Complex& a, const Complex& b, Complex& out);
  bool Exp(const Complex& x, Complex& out);
  bool Log(const Complex& x, Complex& out);
  bool RealPower(const Real& base, const mpq_class& exponent, Real& out);
  bool SineOrCosine(const Complex& x, bool sine, Complex& out);

  const Point& point_;
  const bool complex_;
  Budget& budget_;
  long scale_ = -1'000'000;
};

// The name under which Point holds an opaque node.
std::string OpaqueName(const Expr& node, Budget& budget);

}  // namespace sluice::math
