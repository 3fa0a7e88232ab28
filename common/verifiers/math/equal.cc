#include "common/verifiers/math/equal.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "common/verifiers/math/canonical.h"
#include "common/verifiers/math/probe.h"
#include "common/verifiers/math/relations.h"

namespace sluice::math {
namespace {

constexpr size_t kMaxItems = 256;  // Of a list that is compared in any order.

class Comparison {
 public:
  Comparison(const EqualOptions& options, Budget& budget) : options_(options), budget_(budget) {}

  bool Equal(const Expr& written_gold, const Expr& written_answer) {
    if (!budget_.Spend(8)) return false;
    const Expr gold = ExpandPlusMinus(written_gold), answer = ExpandPlusMinus(written_answer);
    if (Is(gold, Kind::kList) || Is(gold, Kind::kSet)) return EqualToCollection(gold, answer);
    if (Is(answer, Kind::kList)) return false;
    if (Is(gold, Kind::kRelation)) return EqualToRelation(gold, answer);
    if (Is(answer, Kind::kRelation)) {
      const Expr stated = StatedValue(answer);
      return !Is(stated, Kind::kRelation) && Equal(gold, stated);
    }

    switch (gold->kind) {
      case Kind::kTuple:
      case Kind::kUnion:
        return gold->kind == answer->kind && gold->name == answer->name &&
               (Is(gold, Kind::kUnion) && gold->name != "setminus"
                    ? EqualInAnyOrder(gold->kids, answer->kids)
                    : EqualInOrder(gold->kids, answer->kids));
      case Kind::kMatrix:
        return Is(answer, Kind::kMatrix) && gold->columns == answer->columns &&
               EqualInOrder(gold->kids, answer->kids);
      case Kind::kText: return Is(answer, Kind::kText) && gold->name == answer->name;
      case Kind::kRatio:
        // Ratios that are not in lowest terms are times of the day, such as 12:30.
        if (gold->kids.size() > 2 || !IsReducedRatio(gold))
          return Is(answer, Kind::kRatio) && EqualInOrder(gold->kids, answer->kids);
        return EqualSingle(gold, answer);
      default: return EqualSingle(gold, answer);
    }
  }

 private:
  bool EqualSingle(const Expr& gold, const Expr& answer) {
    switch (answer->kind) {
      case Kind::kTuple:
      case Kind::kUnion:
      case Kind::kMatrix:
      case Kind::kText:
      case Kind::kSet: return false;
      case Kind::kRatio:
        // 7:1 is not 7, but 1:2 is 1/2.
        return (Is(WithoutUnit(gold), Kind::kRatio) || Is(gold, Kind::kDivide)) &&
               EqualValues(gold, answer, options_, budget_);
      default: return EqualValues(gold, answer, options_, budget_);
    }
  }

  static bool IsReducedRatio(const Expr& ratio) {
    mpz_class divisor = 0;
    for (const Expr& kid : ratio->kids) {
      if (!Is(kid, Kind::kNumber) || kid->value.get_den() != 1) return true;
      divisor = gcd(divisor, kid->value.get_num());
    }
    return divisor == 1;
  }

  bool EqualInOrder(const std::vector<Expr>& gold, const std::vector<Expr>& answer) {
    if (gold.size() != answer.size()) return false;
    for (size_t i = 0; i < gold.size(); ++i) {
      if (!Equal(gold[i], answer[i])) return false;
    }
    return true;
  }

  // Each item of the gold takes the first free item that equals it. Equality is nearly transitive,
  // so there is no better assignment to search for. What is left must repeat items of the gold.
  bool EqualInAnyOrder(const std::vector<Expr>& gold, const std::vector<Expr>& answer) {
    if (gold.size() > answer.size() || answer.size() > kMaxItems) return false;
    std::vector<bool> taken(answer.size());
    for (const Expr& item : gold) {
      size_t i = 0;
      while (i < answer.size() && (taken[i] || !Equal(item, answer[i]))) ++i;
      if (i == answer.size() || budget_.spent()) return false;
      taken[i] = true;
    }
    for (size_t i = 0; i < answer.size(); ++i) {
      const auto repeats = [&](const Expr& item) { return Equal(item, answer[i]); };
      if (!taken[i] && std::none_of(gold.begin(), gold.end(), repeats)) return false;
    }
    return !budget_.spent();
  }

  bool EqualToCollection(const Expr& gold, const Expr& answer) {
    Expr items = Is(answer, Kind::kRelation) ? StatedValue(answer) : answer;
    items = ExpandPlusMinus(items);
    // A gold "x < 1 or x > 3" equals the union of the two intervals.
    if (Is(gold, Kind::kList) && Is(items, Kind::kUnion) && items->name == "cup") {
      std::vector<Expr> intervals;
      for (const Expr& item : gold->kids) {
        Expr interval = SolutionInterval(item);
        if (interval == nullptr) return false;
        intervals.push_back(std::move(interval));
      }
      return EqualInAnyOrder(intervals, items->kids);
    }
    if (!Is(items, Kind::kList) && !Is(items, Kind::kSet)) return false;
    const bool in_order =
        Is(gold, Kind::kList) && (options_.ordered || (NamesDiffer(gold) && !HasNames(items)));
    return in_order ? EqualInOrder(gold->kids, items->kids)
                    : EqualInAnyOrder(gold->kids, items->kids);
  }

  static bool HasNames(const Expr& list) {
    return std::any_of(list->kids.begin(), list->kids.end(),
                       [](const Expr& item) { return Is(item, Kind::kRelation); });
  }

  // Whether the items give values to different things, such as x = 2, y = 3. Without the names,
  // only the order tells which is which. x_1 and x_2 are two values of one thing.
  static bool NamesDiffer(const Expr& list) {
    std::set<std::string> names;
    for (const Expr& item : list->kids) {
      if (!Is(item, Kind::kRelation) || !Is(item->kids[0], Kind::kSymbol)) return false;
      const std::string& name = item->kids[0]->name;
      names.insert(name.substr(0, name.find('_')));
    }
    return names.size() == list->kids.size() && names.size() > 1;
  }

  bool EqualToRelation(const Expr& gold, const Expr& answer) {
    if (Is(answer, Kind::kRelation) && EqualRelations(gold, answer)) return true;
    const Expr value = StatedValue(gold), stated = StatedValue(answer);
    const bool gold_reduced = !Is(value, Kind::kRelation);
    const bool answer_reduced = !Is(stated, Kind::kRelation);
    if (gold_reduced && answer_reduced) {
      // Both name what they give the value of: the names must be the same.
      if (Is(answer, Kind::kRelation) && IsName(gold->kids[0]) && IsName(answer->kids[0]) &&
          !SameName(gold->kids[0], answer->kids[0]))
        return false;
      return Equal(value, stated);
    }
    if (gold_reduced) return false;
    const Expr interval = answer_reduced ? SolutionInterval(gold) : nullptr;
    return interval != nullptr && (Is(stated, Kind::kTuple) || Is(stated, Kind::kUnion)) &&
           Equal(interval, stated);
  }

  bool SameName(const Expr& a, const Expr& b) {
    if (Is(a, Kind::kTuple) || Is(b, Kind::kTuple))
      return a->kind == b->kind && EqualInOrder(a->kids, b->kids);
    return EqualValues(a, b, options_, budget_);
  }

  static bool IsScalar(const Expr& node) {
    switch (node->kind) {
      case Kind::kTuple:
      case Kind::kUnion:
      case Kind::kMatrix:
      case Kind::kText:
      case Kind::kSet:
      case Kind::kList:
      case Kind::kRelation:
      case Kind::kUnit:
      case Kind::kPercent: return false;
      default: return true;
    }
  }

  bool EqualRelations(const Expr& written_gold, const Expr& written_answer) {
    const Expr gold = PointLeft(written_gold), answer = PointLeft(written_answer);
    if (gold->name != answer->name) return false;
    if (EqualInOrder(gold->kids, answer->kids)) return true;
    // x = 5 and y = 5 have equal sides, but for their names; what is left are other forms.
    if (gold->name.size() != 1 || gold->name[0] == kApprox || gold->name[0] == kElement ||
        budget_.spent())
      return false;
    for (const Expr& relation : {gold, answer}) {
      if (!IsScalar(relation->kids[0]) || !IsScalar(relation->kids[1])) return false;
    }
    // If the gold is solved, the answer must be: 2x = 10 only repeats the question for x = 5.
    if (IsSolved(gold) && !IsSolved(answer)) return false;
    const bool inequality = gold->name[0] == kLess || gold->name[0] == kLessEqual;
    const Expr left = Difference(gold), right = Difference(answer);
    return ProportionalByProbes(left, right, inequality, options_.seed, budget_);
  }

  // A name, or a name with a minus, on one side, and no variables on the other.
  static bool IsSolved(const Expr& relation) {
    for (const int side : {0, 1}) {
      const Expr& named = relation->kids[side];
      const Expr& name = Is(named, Kind::kNegate) ? named->kids[0] : named;
      if (IsName(name) && !HasVariable(relation->kids[1 - side])) return true;
    }
    return false;
  }

  static Expr Difference(const Expr& relation) {
    return MakeNode(Kind::kAdd, "", {relation->kids[0], MakeNegation(relation->kids[1])});
  }

  const EqualOptions& options_;
  Budget& budget_;
};

}  // namespace

bool EqualAnswers(const Expr& gold, const Expr& answer, const EqualOptions& options,
                  Budget& budget) {
  return Comparison(options, budget).Equal(gold, answer);
}

}  // namespace sluice::math
