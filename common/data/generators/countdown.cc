#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/data/generators/make.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

constexpr int64_t kMaxValue = 10'000;

// An expression, which holds some of the numbers.
struct Expression {
  int64_t value = 0;  // From 1 to kMaxValue.
  std::string text;
  bool single = true;  // It is a number, which needs no brackets.
};

std::string Operand(const Expression& of) {
  return of.single ? of.text : absl::StrCat("(", of.text, ")");
}

// Joins two expressions by an operator that gives a whole number from 1 to kMaxValue.
Expression Join(const Expression& a, const Expression& b, bool products, SplitMix64* random) {
  const Expression& large = a.value >= b.value ? a : b;
  const Expression& small = a.value >= b.value ? b : a;
  std::vector<std::pair<char, int64_t>> ways;
  if (large.value + small.value <= kMaxValue) ways.emplace_back('+', large.value + small.value);
  if (large.value > small.value) ways.emplace_back('-', large.value - small.value);
  if (products && large.value * small.value <= kMaxValue)
    ways.emplace_back('*', large.value * small.value);
  // Of two equal values there is always this way.
  if ((products || ways.empty()) && large.value % small.value == 0)
    ways.emplace_back('/', large.value / small.value);

  const auto [op, value] = ways[random->Below(ways.size())];
  return {.value = value,
          .text = absl::StrCat(Operand(large), " ", std::string(1, op), " ", Operand(small)),
          .single = false};
}

}  // namespace

// The task is made from its solution, so that it has one.
nlohmann::json MakeCountdownTask(uint32_t level, SplitMix64* random) {
  const uint64_t most = level < 3 ? 9 : 99;
  std::vector<int64_t> numbers;
  std::vector<Expression> parts;
  for (uint32_t i = 0; i < level + 1; ++i) {
    numbers.push_back(1 + static_cast<int64_t>(random->Below(most)));
    parts.push_back({.value = numbers.back(), .text = absl::StrCat(numbers.back())});
  }
  while (parts.size() > 1) {
    const size_t first = random->Below(parts.size());
    std::swap(parts[first], parts.back());
    const Expression a = std::move(parts.back());
    parts.pop_back();
    const size_t second = random->Below(parts.size());
    parts[second] = Join(a, parts[second], /*products=*/level > 1, random);
  }

  const Expression& solution = parts[0];
  const char* const operators = level > 1 ? "+, -, * and /" : "+ and -";
  return {{"problem", absl::StrCat(absl::StrJoin(numbers, " "), " -> ", solution.value)},
          {"prompt",
           absl::StrCat("Make ", solution.value, " from the numbers ", absl::StrJoin(numbers, ", "),
                        " with ", operators, " and brackets. Use each number exactly once.")},
          {"answer", absl::StrCat(solution.value)},
          {"numbers", numbers},
          {"solution", solution.text}};
}

}  // namespace sluice
