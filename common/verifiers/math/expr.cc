#include "common/verifiers/math/expr.h"

namespace sluice::math {

Expr MakeNumber(mpq_class value, Written written) {
  auto node = std::make_shared<Node>();
  node->value = std::move(value);
  node->written = written;
  return node;
}

Expr MakeSymbol(std::string name) { return MakeNode(Kind::kSymbol, std::move(name), {}); }

Expr MakeNode(Kind kind, std::string name, std::vector<Expr> kids) {
  auto node = std::make_shared<Node>();
  node->kind = kind;
  node->name = std::move(name);
  node->kids = std::move(kids);
  return node;
}

Expr MakeNegation(Expr kid) {
  if (Is(kid, Kind::kNumber)) return MakeNumber(-kid->value, kid->written);
  // The sign of 5 cm and 5 % is the number's.
  if (Is(kid, Kind::kUnit) || Is(kid, Kind::kPercent))
    return MakeNode(kid->kind, kid->name, {MakeNegation(kid->kids[0])});
  return MakeNode(Kind::kNegate, "", {std::move(kid)});
}

bool IsSymbol(const Expr& node, absl::string_view name) {
  return Is(node, Kind::kSymbol) && node->name == name;
}

bool IsConstantName(absl::string_view name) {
  return name == "pi" || name == "e" || name == "i" || name == "infinity";
}

bool HasVariable(const Expr& node) {
  return AnyNode(node, [](const Node& n) {
    return n.kind == Kind::kOpaque || (n.kind == Kind::kSymbol && !IsConstantName(n.name));
  });
}

}  // namespace sluice::math
