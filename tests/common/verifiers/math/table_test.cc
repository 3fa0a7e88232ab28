#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/testing/data.h"
#include "common/verifiers/verifier.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using Json = nlohmann::json;

std::vector<Json> ReadRows(const std::string& name) {
  std::vector<Json> rows;
  const std::string text = *ReadFile(testing_data::Path(name));
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty()))
    rows.push_back(Json::parse(line));
  return rows;
}

double ScoreRow(const Verifier& verifier, const Json& row) {
  Json mapped = {{"answer", row["gold"]}};
  if (row.contains("decimals")) mapped["decimals"] = row["decimals"];
  const auto verdict = verifier.Score({.text = row["pred"]}, mapped);
  EXPECT_TRUE(verdict.ok()) << verdict.status() << row;
  return verdict.ok() ? verdict->score : -1;
}

TEST(MathTableTest, EveryRowWithoutAConventionAgrees) {
  SLUICE_NEEDS_TEST_DATA("math/equivalence.jsonl");
  const auto math = *MakeVerifier("math", Json::object());
  int rows = 0;
  for (const Json& row : ReadRows("math/equivalence.jsonl")) {
    if (row.contains("policy")) continue;
    EXPECT_EQ(ScoreRow(*math, row), row["equal"] ? 1 : 0) << row;
    ++rows;
  }

  EXPECT_EQ(rows, 402);
}

// The rows on which graders differ by convention. README.md of the reward daemon names ours.
TEST(MathTableTest, TheConventionsThatDifferFromTheSourcesAreTheDocumentedOnes) {
  SLUICE_NEEDS_TEST_DATA("math/equivalence.jsonl");
  const auto math = *MakeVerifier("math", Json::object());
  std::map<std::string, int> differing;
  for (const Json& row : ReadRows("math/equivalence.jsonl")) {
    if (row.contains("policy") && ScoreRow(*math, row) != (row["equal"] ? 1 : 0))
      ++differing[row["policy"]];
  }

  const std::map<std::string, int> documented = {
      {"approximation", 1},     // x + 1.414i
      {"double-backslash", 1},  // W(x) for W(n)
      {"extraction", 1},        // A line break inside of a formula.
      {"ordered-list", 1},      // Lists are unordered, unless `ordered` is set.
      {"source-error", 1},      // 1 - 1/e is not 1 + 1/e.
      {"time-format", 2},      {"tuple-vs-set", 1}};
  EXPECT_EQ(differing, documented);
}

TEST(MathTableTest, EverySolutionOfGsm8kScoresAsItsPublishedVerdict) {
  SLUICE_NEEDS_TEST_DATA("math/gsm8k_responses.jsonl");
  const auto math = *MakeVerifier("math", Json::object());
  const auto flexible = *MakeVerifier("gsm8k", {{"extract", "flexible"}});
  int rows = 0;
  for (const Json& row : ReadRows("math/gsm8k_responses.jsonl")) {
    EXPECT_EQ(ScoreRow(*math, row), row["equal"] ? 1 : 0) << row;
    EXPECT_EQ(ScoreRow(*flexible, row), row["equal"] ? 1 : 0) << row;
    ++rows;
  }

  EXPECT_EQ(rows, 400);
}

TEST(MathTableTest, EveryGoldOfGsm8kScoresOneAgainstItself) {
  SLUICE_NEEDS_TEST_DATA("gsm8k/train.jsonl");
  const std::unique_ptr<Verifier> verifiers[] = {*MakeVerifier("math", Json::object()),
                                                 *MakeVerifier("math", {{"form", "final"}}),
                                                 *MakeVerifier("gsm8k", {{"extract", "flexible"}})};
  int rows = 0;
  for (const char* const file : {"gsm8k/train.jsonl", "gsm8k/test.jsonl"}) {
    for (const Json& row : ReadRows(file)) {
      for (const auto& verifier : verifiers) {
        const auto verdict = verifier->Score({.text = row["answer"]}, row);
        ASSERT_TRUE(verdict.ok()) << verdict.status();
        EXPECT_EQ(verdict->score, 1) << row["answer"];
      }
      ++rows;
    }
  }

  EXPECT_EQ(rows, 7473 + 1319);
}

}  // namespace
}  // namespace sluice
