#include "common/verifiers/math/functions.h"

#include "absl/strings/str_cat.h"
#include "common/verifiers/math/rational.h"

namespace sluice::math {
namespace {

bool IsMatrix(const Expr& node) { return Is(node, Kind::kMatrix); }

std::shared_ptr<Node> MakeMatrix(std::vector<Expr> cells, size_t columns) {
  auto made = std::make_shared<Node>();
  made->kind = Kind::kMatrix;
  made->kids = std::move(cells);
  made->columns = columns;
  return made;
}

// The cells of a matrix as numbers, or of anything else as one number. False: not rational.
bool ReadCells(const Expr& node, std::vector<mpq_class>& cells, Budget& budget) {
  if (!IsMatrix(node)) return EvaluateRational(node, budget, cells.emplace_back());
  for (const Expr& cell : node->kids) {
    if (!EvaluateRational(cell, budget, cells.emplace_back())) return false;
  }
  return true;
}

Expr AddMatrices(const Expr& a, const Expr& b, Budget& budget) {
  if (!IsMatrix(a) || !IsMatrix(b) || a->columns != b->columns || a->kids.size() != b->kids.size())
    return nullptr;
  std::vector<mpq_class> left, right;
  if (!ReadCells(a, left, budget) || !ReadCells(b, right, budget)) return nullptr;
  std::vector<Expr> cells;
  for (size_t i = 0; i < left.size(); ++i) {
    mpq_class sum;
    if (!AddRationals(left[i], right[i], budget, sum)) return nullptr;
    cells.push_back(MakeNumber(std::move(sum)));
  }
  return MakeMatrix(std::move(cells), a->columns);
}

Expr MultiplyMatrices(const Expr& a, const Expr& b, Budget& budget) {
  std::vector<mpq_class> left, right;
  if (!ReadCells(a, left, budget) || !ReadCells(b, right, budget)) return nullptr;
  // A number times a matrix.
  if (!IsMatrix(a) || !IsMatrix(b)) {
    const auto& [number, matrix, columns] = IsMatrix(a) ? std::tuple(right[0], &left, a->columns)
                                                        : std::tuple(left[0], &right, b->columns);
    std::vector<Expr> cells;
    for (const mpq_class& cell : *matrix) {
      mpq_class product;
      if (!MultiplyRationals(number, cell, budget, product)) return nullptr;
      cells.push_back(MakeNumber(std::move(product)));
    }
    return MakeMatrix(std::move(cells), columns);
  }

  const size_t inner = a->columns, columns = b->columns;
  if (inner * columns != right.size()) return nullptr;
  std::vector<Expr> cells;
  for (size_t row = 0; row * inner < left.size(); ++row) {
    for (size_t column = 0; column < columns; ++column) {
      mpq_class sum, product, next;
      for (size_t k = 0; k < inner; ++k) {
        if (!MultiplyRationals(left[row * inner + k], right[k * columns + column], budget,
                               product) ||
            !AddRationals(sum, product, budget, next))
          return nullptr;
        sum = next;
      }
      cells.push_back(MakeNumber(std::move(sum)));
    }
  }
  return MakeMatrix(std::move(cells), columns);
}

using Combine = Expr (*)(const Expr&, const Expr&, Budget&);
Expr CombineNodes(Kind kind, std::vector<Expr> nodes, Combine combine, Budget& budget) {
  bool matrix = false;
  for (const Expr& node : nodes) matrix |= IsMatrix(node);
  if (!matrix) return MakeNode(kind, "", std::move(nodes));
  Expr out = nodes[0];
  for (size_t i = 1; i < nodes.size() && out != nullptr; ++i) out = combine(out, nodes[i], budget);
  return out;
}

}  // namespace

Expr AddNodes(std::vector<Expr> terms, Budget& budget) {
  return CombineNodes(Kind::kAdd, std::move(terms), AddMatrices, budget);
}

Expr MultiplyNodes(std::vector<Expr> factors, Budget& budget) {
  return CombineNodes(Kind::kMultiply, std::move(factors), MultiplyMatrices, budget);
}

Expr MakeFunction(std::string name, Expr base, Expr exponent, Expr argument) {
  const bool inverse = exponent != nullptr && Is(exponent, Kind::kNumber) && exponent->value == -1;
  const bool trigonometric =
      name == "sin" || name == "cos" || name == "tan" || name == "cot" || name == "sec";
  if (inverse && trigonometric) {
    name = absl::StrCat("arc", name);
    exponent = nullptr;
  }
  if (name == "asin" || name == "acos" || name == "atan")
    name = absl::StrCat("arc", name.substr(1));
  if (name == "cosec") name = "csc";
  if (name == "cotan") name = "cot";

  std::vector<Expr> arguments = {argument};
  const bool several = name == "gcd" || name == "lcm" || name == "min" || name == "max";
  if (several) {
    if (!Is(argument, Kind::kTuple) && !Is(argument, Kind::kSet)) return nullptr;
    arguments = argument->kids;
  }
  if (name == "lg") {
    name = "log";
    base = MakeNumber(10);
  }
  if (base != nullptr && name != "log") return nullptr;
  Expr value;
  if (name == "sqrt") {
    value = MakeNode(Kind::kFunction, "root", {MakeNumber(2), argument});
  } else if (name == "exp") {
    value = MakeNode(Kind::kPower, "", {MakeSymbol("e"), argument});
  } else if (name == "log" && base != nullptr) {
    value = MakeNode(
        Kind::kDivide, "",
        {MakeNode(Kind::kFunction, "ln", {argument}), MakeNode(Kind::kFunction, "ln", {base})});
  } else {
    // log without a base is the natural one, as in most of the texts that need it.
    if (name == "log") name = "ln";
    value = MakeNode(Kind::kFunction, name, std::move(arguments));
  }
  if (exponent == nullptr) return value;
  return MakeNode(Kind::kPower, "", {std::move(value), std::move(exponent)});
}

}  // namespace sluice::math
