#include "common/base/error_catalogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Calls `take` with each source file that may give an error, but not with the catalogue itself.
template <typename Take>
void ForEachSource(const Take& take) {
  for (const char* folder : {"common", "services", "tools/sluice"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             absl::StrCat(SLUICE_SOURCE_DIR "/", folder))) {
      const std::string path = entry.path().string();
      if ((!absl::EndsWith(path, ".cc") && !absl::EndsWith(path, ".h")) ||
          absl::StrContains(path, "error_catalogue."))
        continue;
      const absl::StatusOr<std::string> text = ReadFile(path);
      ASSERT_TRUE(text.ok()) << text.status();
      take(path, *text);
    }
  }
}

// Calls `take` with the groups of each match.
template <typename Take>
void ForEachMatch(const std::string& text, const std::regex& pattern, const Take& take) {
  for (auto it = std::sregex_iterator(text.begin(), text.end(), pattern);
       it != std::sregex_iterator(); ++it)
    take(*it);
}

// The numbers that the sources give, with the file of the last use. Those of job files are written
// as numbers alone, in common/config and common/policy.
std::map<std::string, std::string> UsedCodes() {
  static const std::regex whole("SLUICE-[A-Z]+-[0-9]{4}");
  static const std::regex config("(?:Add|FailedJobFile)\\((?:[^;\"]{0,90}?,\\s*)?([0-9]{1,2}),\\s");
  static const std::regex either("problems->Add\\(.*\\? ([0-9]{1,2}) : [0-9]{1,2},");
  std::map<std::string, std::string> used;
  ForEachSource([&](const std::string& path, const std::string& text) {
    ForEachMatch(text, whole, [&](const std::smatch& match) { used[match[0]] = path; });
    if (!absl::StrContains(path, "/common/config/") && !absl::StrContains(path, "/common/policy/"))
      return;
    for (const std::regex& pattern : {config, either}) {
      ForEachMatch(text, pattern, [&](const std::smatch& match) {
        used[absl::StrFormat("SLUICE-CONFIG-%04d", std::stoi(match[1]))] = path;
      });
    }
    if (absl::StrContains(text, "kWarningNumber = 17")) used["SLUICE-CONFIG-0017"] = path;
  });
  return used;
}

TEST(ErrorCatalogue, HasARowForEachNumberInTheSourcesAndNoOther) {
  const std::map<std::string, std::string> used = UsedCodes();
  EXPECT_GE(used.size(), 75u) << "the scan finds them";
  for (const auto& [code, path] : used) EXPECT_NE(FindError(code), nullptr) << code << ": " << path;
  for (const CatalogueRow& row : ErrorCatalogue())
    EXPECT_EQ(used.count(row.code), 1u) << row.code << " is not used any more";
}

// Where a number stands beside the reason of an error, it always is the same reason.
TEST(ErrorCatalogue, NoNumberIsUsedForTwoMeanings) {
  static const std::regex pair(
      "\\{(?:\\.reason = )?\"([A-Z_]+)\",\\s*(?:\\.catalogue = )?\"(SLUICE-[A-Z]+-[0-9]{4})\"");
  std::map<std::string, std::set<std::string>> reasons;
  ForEachSource([&](const std::string&, const std::string& text) {
    ForEachMatch(text, pair, [&](const std::smatch& match) { reasons[match[2]].insert(match[1]); });
  });
  EXPECT_GE(reasons.size(), 40u) << "the scan finds them";
  for (const auto& [code, names] : reasons)
    EXPECT_EQ(names.size(), 1u) << code << " is used for " << ::testing::PrintToString(names);
}

TEST(ErrorCatalogue, IsOrderedAndEachRowIsWholeSentences) {
  const absl::Span<const CatalogueRow> rows = ErrorCatalogue();
  EXPECT_TRUE(std::is_sorted(
      rows.begin(), rows.end(),
      [](const CatalogueRow& a, const CatalogueRow& b) { return std::string(a.code) < b.code; }));
  std::set<std::string> codes;
  for (const CatalogueRow& row : rows) {
    EXPECT_TRUE(codes.insert(row.code).second) << row.code << " is there twice";
    for (const char* text : {row.meaning, row.cause, row.action})
      EXPECT_TRUE(absl::EndsWith(text, ".")) << row.code << ": " << text;
  }
}

TEST(ErrorCatalogue, ANumberIsFoundHoweverItIsWritten) {
  for (const char* code : {"SLUICE-CTL-0006", "sluice-ctl-0006", "CTL-0006", "ctl-6"}) {
    ASSERT_NE(FindError(code), nullptr) << code;
    EXPECT_STREQ(FindError(code)->code, "SLUICE-CTL-0006");
  }
  for (const char* code : {"", "-", "ctl", "ctl-", "ctl-x", "ctl-99999999999", "SLUICE-CTL-0099"})
    EXPECT_EQ(FindError(code), nullptr) << code;
}

TEST(ErrorCatalogue, AnUnknownNumberHasSimilarOnes) {
  EXPECT_THAT(FindSimilarErrors("rpc-9"),
              ElementsAre("SLUICE-RPC-0001", "SLUICE-RPC-0002", "SLUICE-RPC-0003"));
  EXPECT_THAT(FindSimilarErrors("SLUICE-AUTH-0029"),
              ElementsAre("SLUICE-AUTH-0020", "SLUICE-AUTH-0021", "SLUICE-AUTH-0022"));
  EXPECT_THAT(FindSimilarErrors("SLUICE-QUEEU-0006"), ElementsAre("SLUICE-QUEUE-0006"));
  EXPECT_THAT(FindSimilarErrors("hello"), IsEmpty());
}

}  // namespace
}  // namespace sluice
