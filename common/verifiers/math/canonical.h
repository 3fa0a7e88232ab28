#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/verifiers/math/budget.h"
#include "common/verifiers/math/expr.h"

namespace sluice::math {

// The atoms of formulas: variables, constants, and everything else that is not made by arithmetic,
// such as \sin x. Two atoms with the same key are the same.
class Atoms {
 public:
  // Atom 0 is the imaginary unit, whose square is -1.
  Atoms() { Find("i"); }
  int Find(const std::string& key) {
    return ids_.try_emplace(key, static_cast<int>(ids_.size())).first->second;
  }

 private:
  std::map<std::string, int> ids_;
};

// A product of powers of atoms: (atom, exponent > 0), sorted by atom.
using Monomial = std::vector<std::pair<int, int>>;
// A polynomial in the atoms, without zero coefficients.
using Polynomial = std::map<Monomial, mpq_class>;

// over / under. Common factors are not cancelled.
struct Fraction {
  Polynomial over, under;
};

// Rewrites the formula as a rational function of its atoms. Returns nullopt if it is not one
// (a list, say), has more than 4096 monomials, or is over the budget.
std::optional<Fraction> MakeFraction(const Expr& node, Atoms& atoms, Budget& budget);

enum class Decision { kEqual, kDifferent, kOpen };

// Compares two formulas as rational functions. kDifferent is certain: it is only given if all atoms
// are variables, whose values are independent.
Decision CompareCanonically(const Expr& a, const Expr& b, Budget& budget);

}  // namespace sluice::math
