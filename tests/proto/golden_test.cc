#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "tests/proto/contracts.h"

namespace sluice {
namespace {

const std::string kGolden = std::string(SLUICE_SOURCE_DIR) + "/tests/golden/descriptors.txt";

std::string Difference(const std::string& before, const std::string& now) {
  const auto lines = [](const std::string& text) {
    return std::set<std::string>(absl::StrSplit(text, '\n', absl::SkipEmpty()));
  };
  const std::set<std::string> a = lines(before), b = lines(now);
  std::vector<std::string> gone, come;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(gone));
  std::set_difference(b.begin(), b.end(), a.begin(), a.end(), std::back_inserter(come));
  std::string text;
  for (const std::string& line : gone) absl::StrAppend(&text, "- ", line, "\n");
  for (const std::string& line : come) absl::StrAppend(&text, "+ ", line, "\n");

  return text;
}

TEST(ContractsTest, NothingThatAPeerCanSeeChangesUnnoticed) {
  const std::string now = contracts::Describe();
  if (std::getenv("SLUICE_UPDATE_GOLDEN") != nullptr) {
    ASSERT_TRUE(WriteFileAtomic(kGolden, now).ok());
    GTEST_SKIP() << "wrote " << kGolden;
  }

  const absl::StatusOr<std::string> golden = ReadFile(kGolden);
  ASSERT_TRUE(golden.ok()) << golden.status();
  EXPECT_TRUE(*golden == now) << Difference(*golden, now)
                              << "The wire contracts changed. A field, method or enum value may be "
                                 "added; a number is never\n"
                                 "re-used, a removed one is `reserved`, a changed meaning is a new "
                                 "field. If the change is meant:\n"
                                 "  SLUICE_UPDATE_GOLDEN=1 "
                              << SLUICE_BIN_DIR << "/proto_test --gtest_filter='ContractsTest.*'";
}

}  // namespace
}  // namespace sluice
