#include "common/verifiers/math/final_form.h"

#include "common/verifiers/math/rational.h"
#include "common/verifiers/math/relations.h"
#include "common/verifiers/math/values.h"

namespace sluice::math {
namespace {

Expr WithoutSign(const Expr& node) { return Is(node, Kind::kNegate) ? node->kids[0] : node; }

bool IsLiteral(const Expr& signed_node) {
  const Expr node = WithoutSign(signed_node);
  const std::vector<Expr>& kids = node->kids;
  switch (node->kind) {
    case Kind::kNumber: return true;
    case Kind::kDivide:
    case Kind::kRatio:
    case Kind::kPower:
      return kids.size() == 2 && Is(WithoutSign(kids[0]), Kind::kNumber) &&
             Is(WithoutSign(kids[1]), Kind::kNumber);
    case Kind::kMultiply:  // 6.02 * 10^23
      return kids.size() == 2 && Is(kids[0], Kind::kNumber) && Is(kids[1], Kind::kPower) &&
             Is(kids[1]->kids[0], Kind::kNumber) && kids[1]->kids[0]->value == 10 &&
             IsLiteral(kids[1]);
    default: return false;
  }
}

}  // namespace

bool IsFinal(const Expr& gold, const Expr& answer, Budget& budget) {
  const bool collection = Is(gold, Kind::kList) || Is(gold, Kind::kSet) || Is(gold, Kind::kTuple);
  const Expr stated = StatedValue(answer);
  if (collection && gold->kids.size() == stated->kids.size()) {
    // Each number of a list counts. The order may differ: all golds must be rational then.
    for (const Expr& item : gold->kids) {
      mpq_class unused;
      if (!EvaluateRational(WithoutUnit(StatedValue(item)), budget, unused)) return true;
    }
    for (const Expr& item : stated->kids) {
      if (!IsLiteral(WithoutUnit(StatedValue(item)))) return false;
    }
    return true;
  }
  mpq_class unused;
  if (!EvaluateRational(WithoutUnit(StatedValue(gold)), budget, unused)) return true;
  return IsLiteral(WithoutUnit(stated));
}

bool IsReduced(const Expr& answer) {
  return !AnyNode(answer, [](const Node& node) {
    if (node.kind != Kind::kDivide) return false;
    const Expr top = WithoutSign(node.kids[0]), bottom = WithoutSign(node.kids[1]);
    if (!Is(top, Kind::kNumber) || !Is(bottom, Kind::kNumber)) return false;
    if (top->value.get_den() != 1 || bottom->value.get_den() != 1) return true;
    return gcd(top->value.get_num(), bottom->value.get_num()) != 1 || bottom->value == 1;
  });
}

}  // namespace sluice::math
