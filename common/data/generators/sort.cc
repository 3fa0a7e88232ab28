#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/data/generators/make.h"
#include "nlohmann/json.hpp"

namespace sluice {

nlohmann::json MakeSort(uint32_t level, SplitMix64* random) {
  const uint64_t below = level < 4 ? 10 : 100;
  std::vector<uint64_t> numbers;
  for (uint32_t i = 0; i < level + 2; ++i) numbers.push_back(random->Below(below));
  const std::string problem = absl::StrJoin(numbers, " ");
  std::sort(numbers.begin(), numbers.end());
  const std::string sorted = absl::StrJoin(numbers, " ");
  return {{"problem", problem},
          {"prompt", absl::StrCat("Sort these numbers from the smallest to the largest, and write "
                                  "them with spaces between: ",
                                  problem)},
          {"answer", sorted},
          {"solution", sorted}};
}

}  // namespace sluice
