#pragma once

#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"

namespace sluice::testing_data {

// The design numbers its invariants, as T01 and W01, and the names of their tests begin with the
// numbers: TEST(PolicyLossTest, T01AtEqual..), TEST(RelayTest, W05W06ABadRelay..). Returns the
// numbers with this letter which are borne by a test in tests/ whose suite ends in `suffix`.
inline std::set<int> NumbersOfTests(char letter, const std::string& suffix) {
  const std::string number = absl::StrCat(std::string(1, letter), "(\\d\\d)");
  const std::regex test(absl::StrCat("TEST(?:_F|_P)?\\(\\s*(\\w+),\\s*((?:", number, ")+)")),
      single(number);
  std::set<int> numbers;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(absl::StrCat(SLUICE_SOURCE_DIR, "/tests"))) {
    const std::string path = entry.path().string();
    if (!absl::EndsWith(path, ".cc") && !absl::EndsWith(path, ".cu")) continue;
    const std::string text = *ReadFile(path);
    for (std::sregex_iterator it(text.begin(), text.end(), test), end; it != end; ++it) {
      if (!absl::EndsWith((*it)[1].str(), suffix)) continue;
      const std::string borne = (*it)[2];
      for (std::sregex_iterator n(borne.begin(), borne.end(), single); n != end; ++n)
        numbers.insert(std::stoi((*n)[1]));
    }
  }
  return numbers;
}

}  // namespace sluice::testing_data
