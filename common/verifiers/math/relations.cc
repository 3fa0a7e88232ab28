#include "common/verifiers/math/relations.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace sluice::math {
namespace {

bool IsVariable(const Expr& node) { return Is(node, Kind::kSymbol) && !IsConstantName(node->name); }

// Letters side by side that name one thing: AB, or f' before its argument.
bool IsNameOfLetters(const Expr& node) {
  if (!Is(node, Kind::kMultiply)) return false;
  const bool capitals = std::all_of(node->kids.begin(), node->kids.end(), [](const Expr& kid) {
    return Is(kid, Kind::kSymbol) && absl::ascii_isupper(kid->name[0]);
  });
  const Expr& first = node->kids[0];
  const bool derivative = node->kids.size() == 2 && Is(first, Kind::kSymbol) &&
                          first->name.back() == '\'' && IsVariable(node->kids[1]);
  return capitals || derivative;
}

bool IsComputedOpaque(const Expr& node) { return Is(node, Kind::kOpaque) && node->name.size() > 1; }

bool IsInequality(char relation) {
  return relation == kLess || relation == kLessEqual || relation == kGreater ||
         relation == kGreaterEqual;
}

char Mirror(char relation) {
  switch (relation) {
    case kLess: return kGreater;
    case kLessEqual: return kGreaterEqual;
    case kGreater: return kLess;
    case kGreaterEqual: return kLessEqual;
    default: return relation;
  }
}

bool HasPlusMinus(const Expr& node) {
  return AnyNode(node, [](const Node& n) { return n.kind == Kind::kPlusMinus; });
}

Expr ChooseSign(const Expr& node, bool upper) {
  if (Is(node, Kind::kPlusMinus)) {
    Expr inside = ChooseSign(node->kids[0], upper);
    return upper == (node->name == "+-") ? inside : MakeNegation(std::move(inside));
  }
  auto copy = std::make_shared<Node>(*node);
  for (Expr& kid : copy->kids) kid = ChooseSign(kid, upper);
  return copy;
}

Expr MakeInterval(const Expr& low, const Expr& high, bool low_closed, bool high_closed) {
  return MakeNode(Kind::kTuple, std::string(low_closed ? "[" : "(") + (high_closed ? "]" : ")"),
                  {low, high});
}

}  // namespace

bool IsName(const Expr& node) {
  const std::vector<Expr>& kids = node->kids;
  switch (node->kind) {
    case Kind::kSymbol: return !IsConstantName(node->name);
    case Kind::kOpaque: return node->name.size() == 1;
    case Kind::kText: return true;
    case Kind::kFunction: return node->name == "abs" && IsName(kids[0]);
    case Kind::kRatio:
    case Kind::kTuple: return std::all_of(kids.begin(), kids.end(), IsName);
    default: return IsNameOfLetters(node);
  }
}

Expr StatedValue(const Expr& node) {
  if (!Is(node, Kind::kRelation)) return node;
  const std::string& relations = node->name;
  const std::vector<Expr>& sides = node->kids;
  if (relations == std::string(1, kElement)) return IsName(sides[0]) ? sides[1] : node;
  for (const char relation : relations) {
    if (relation != kEqual && relation != kApprox) return node;
  }

  // The exact value stands before the first "about".
  size_t last = std::min(relations.find(kApprox), relations.size());
  const bool name = IsName(sides[0]);
  if (last == 0) return name ? sides[1] : sides[0];
  if (name || IsComputedOpaque(sides[0])) return sides[last];
  if (HasVariable(sides[0])) return node;
  if (last == 1 && IsName(sides[1])) return sides[0];  // 5 = x
  return HasVariable(sides[last]) ? node : sides[last];
}

Expr SolutionInterval(const Expr& node) {
  if (!Is(node, Kind::kRelation)) return nullptr;
  const Expr relation = PointLeft(node);
  const std::vector<Expr>& sides = relation->kids;
  for (const char c : relation->name) {
    if (c != kLess && c != kLessEqual) return nullptr;
  }
  const Expr infinity = MakeSymbol("infinity");
  const bool first_closed = relation->name[0] == kLessEqual;
  if (sides.size() == 3 && IsName(sides[1]))
    return MakeInterval(sides[0], sides[2], first_closed, relation->name[1] == kLessEqual);
  if (sides.size() != 2) return nullptr;
  if (IsName(sides[0]) && !IsName(sides[1]))
    return MakeInterval(MakeNegation(infinity), sides[1], false, first_closed);
  if (IsName(sides[1]) && !IsName(sides[0]))
    return MakeInterval(sides[0], infinity, first_closed, false);
  return nullptr;
}

Expr PointLeft(const Expr& relation) {
  const std::string& name = relation->name;
  const bool right = std::all_of(name.begin(), name.end(), [](char c) {
    return IsInequality(c) && (c == kGreater || c == kGreaterEqual);
  });
  if (!right) return relation;
  std::string mirrored(name.rbegin(), name.rend());
  for (char& c : mirrored) c = Mirror(c);
  return MakeNode(Kind::kRelation, mirrored,
                  std::vector<Expr>(relation->kids.rbegin(), relation->kids.rend()));
}

Expr ExpandPlusMinus(const Expr& node) {
  if (!HasPlusMinus(node)) return node;
  const bool collection = Is(node, Kind::kList) || Is(node, Kind::kSet);
  std::vector<Expr> out;
  for (const Expr& item : collection ? node->kids : std::vector<Expr>{node}) {
    if (!HasPlusMinus(item)) {
      out.push_back(item);
    } else {
      for (const bool upper : {true, false}) out.push_back(ChooseSign(item, upper));
    }
  }
  return MakeNode(collection ? node->kind : Kind::kList, "", std::move(out));
}

}  // namespace sluice::math
