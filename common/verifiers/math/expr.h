#pragma once

#include <gmpxx.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::math {

enum class Kind {
  kNumber,     // value, and how it was written
  kSymbol,     // name: a variable or a constant (pi, e, i, infinity)
  kText,       // name: words, in lower case
  kAdd,        // the sum of its children
  kMultiply,   // the product of its children
  kDivide,     // child 0 / child 1
  kPower,      // child 0 ^ child 1
  kNegate,     // - child 0
  kPlusMinus,  // both signs of child 0; name is "+-" or "-+"
  kFunction,   // name, applied to its children: sin, root, factorial, ..
  kOpaque,     // name and children of something that is only compared: sums, limits, f(x)
  kPercent,    // child 0 in percent
  kUnit,       // child 0 with the unit or other words of `name` behind it
  kRatio,      // a : b : c
  kList,       // answers side by side, in no order
  kTuple,      // (a, b), and intervals; name holds the two brackets
  kSet,        // {a, b}
  kUnion,      // of its children; name is cup, cap or setminus
  kMatrix,     // rows of `columns` children
  kRelation,   // children with the relations of `name` between them, one character each
};

// How a number was written, for the rules of rounding.
struct Written {
  int decimals = 0;     // Digits behind the point.
  int significant = 0;  // Digits from the first that is not 0 on.
  bool point = false;   // It had a decimal point, so it may be rounded.
};

struct Node;
using Expr = std::shared_ptr<const Node>;

// A formula, immutable once it is made.
struct Node {
  Kind kind = Kind::kNumber;
  std::string name;
  std::vector<Expr> kids;
  mpq_class value;
  Written written;
  size_t columns = 0;
};

// Relations of Node::name.
inline constexpr char kLess = '<', kLessEqual = 'l', kGreater = '>', kGreaterEqual = 'g',
                      kEqual = '=', kNotEqual = 'n', kElement = 'e', kApprox = '~', kArrow = 't';

Expr MakeNumber(mpq_class value, Written written = {});
Expr MakeSymbol(std::string name);
Expr MakeNode(Kind kind, std::string name, std::vector<Expr> kids);
// Folds the sign into a number.
Expr MakeNegation(Expr kid);

inline bool Is(const Expr& node, Kind kind) { return node->kind == kind; }
bool IsSymbol(const Expr& node, absl::string_view name);
bool IsConstantName(absl::string_view name);  // pi, e, i or infinity.

// Whether `test` holds for a node below or at `node`.
template <typename Test>
bool AnyNode(const Expr& node, const Test& test) {
  if (test(*node)) return true;
  for (const Expr& kid : node->kids) {
    if (AnyNode(kid, test)) return true;
  }
  return false;
}

bool HasVariable(const Expr& node);

}  // namespace sluice::math
