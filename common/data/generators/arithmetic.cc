#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/data/generators/make.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

nlohmann::json ProblemOf(const std::string& problem, int64_t value) {
  return {{"problem", problem},
          {"prompt", absl::StrCat("What is ", problem, "?")},
          {"answer", absl::StrCat(value)},
          {"solution", absl::StrCat(value)}};
}

// A number of this many digits; of one digit it may be 0.
int64_t NumberOf(uint32_t digits, SplitMix64* random) {
  int64_t low = 1;
  for (uint32_t i = 1; i < digits; ++i) low *= 10;
  const int64_t high = 10 * low;
  if (digits == 1) low = 0;
  return low + static_cast<int64_t>(random->Below(static_cast<uint64_t>(high - low)));
}

}  // namespace

nlohmann::json MakeArithmetic(uint32_t level, SplitMix64* random) {
  const uint64_t kind = random->Below(level < 3 ? 2 : 3);
  // A product has one digit less in each factor, so that it is about as hard as a sum.
  const uint32_t digits = kind == 2 ? level - 1 : level;
  int64_t a = NumberOf(digits, random), b = NumberOf(digits, random);
  if (kind == 0) return ProblemOf(absl::StrCat(a, " + ", b), a + b);
  if (kind == 2) return ProblemOf(absl::StrCat(a, " * ", b), a * b);
  if (a < b) std::swap(a, b);  // No value is negative.
  return ProblemOf(absl::StrCat(a, " - ", b), a - b);
}

nlohmann::json MakeChainSum(uint32_t level, SplitMix64* random) {
  const uint64_t below = level < 5 ? 10 : 100;
  auto value = static_cast<int64_t>(random->Below(below));
  std::string problem = absl::StrCat(value);
  for (uint32_t i = 0; i < level; ++i) {
    const auto number = static_cast<int64_t>(random->Below(below));
    const bool plus = random->Below(2) == 0;
    absl::StrAppend(&problem, plus ? " + " : " - ", number);
    value += plus ? number : -number;
  }
  return ProblemOf(problem, value);
}

}  // namespace sluice
