// The algorithm sheet numbers its invariants T1 to T28. The names of their tests begin with the
// number, so that this test can say which have none.

#include <filesystem>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file.h"

namespace sluice {
namespace {

const std::set<int> kWithoutATest;

std::string AllTests() {
  std::string text;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(absl::StrCat(SLUICE_SOURCE_DIR, "/tests"))) {
    if (entry.path().extension() == ".cc") text += *ReadFile(entry.path().string());
  }
  return text;
}

TEST(AlgorithmSheetTest, EveryInvariantHasATestThatBearsItsNumber) {
  const std::string text = AllTests();
  std::set<int> missing;
  for (int t = 1; t <= 28; ++t) {
    // As in TEST(PolicyLossTest, T01AtEqual..).
    if (text.find(absl::StrFormat("Test, T%02d", t)) == std::string::npos) missing.insert(t);
  }
  EXPECT_EQ(missing, kWithoutATest);
}

}  // namespace
}  // namespace sluice
