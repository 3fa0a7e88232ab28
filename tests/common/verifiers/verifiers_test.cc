#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/base/splitmix.h"
#include "common/testing/data.h"
#include "common/verifiers/decimal.h"
#include "common/verifiers/verifier.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using Json = nlohmann::json;
using testing::DoubleNear;
using testing::HasSubstr;

std::unique_ptr<Verifier> Make(const std::string& name, const Json& args = Json::object()) {
  auto verifier = MakeVerifier(name, args);
  EXPECT_TRUE(verifier.ok()) << verifier.status();
  return *std::move(verifier);
}
double Score(const Verifier& verifier, const std::string& text, const Json& row,
             bool truncated = false) {
  const auto verdict = verifier.Score({.text = text, .truncated = truncated}, row);
  EXPECT_TRUE(verdict.ok()) << verdict.status();
  return verdict.ok() ? verdict->score : NAN;
}

TEST(ExactTest, ComparesWithOneGoldOrAnyOfSeveral) {
  const auto exact = Make("exact");
  EXPECT_EQ(Score(*exact, " 42\n", {{"answer", "42"}}), 1);
  EXPECT_EQ(Score(*exact, "Paris", {{"answer", "paris"}}), 0);
  EXPECT_EQ(
      Score(*Make("exact", {{"ignore_case", true}}), "Paris", {{"answer", {"London", "paris"}}}),
      1);
  EXPECT_EQ(Score(*Make("exact", {{"trim", false}}), " 42", {{"answer", "42"}}), 0);
  EXPECT_EQ(Score(*exact, "<think>it is 41</think>42", {{"answer", "42"}}), 1);
  EXPECT_EQ(Score(*exact, "<think>42", {{"answer", "42"}}), 0) << "thinking that never ended";
  EXPECT_FALSE(exact->Score({.text = "42"}, Json::object()).ok());
}

TEST(GoldTest, ANumberIsTheTextThatJsonWritesForIt) {
  const auto exact = Make("exact");
  EXPECT_EQ(Score(*exact, "42", {{"answer", 42}}), 1);
  EXPECT_EQ(Score(*exact, "-7", {{"answer", -7}}), 1);
  EXPECT_EQ(Score(*exact, "12.5", {{"answer", 12.5}}), 1);
  EXPECT_EQ(Score(*exact, "12", {{"answer", {"a dozen", 12}}}), 1);
  EXPECT_EQ(Score(*exact, "18446744073709551615", {{"answer", 18446744073709551615u}}), 1);

  EXPECT_EQ(Score(*Make("gsm8k"), "#### 12", {{"answer", 12}}), 1);
  EXPECT_EQ(Score(*Make("gsm8k"), "#### 25/2", {{"answer", 12.5}}), 1);
  EXPECT_EQ(Score(*Make("text", {{"property", "reversed"}}), "21", {{"answer", 12}}), 1);
}

TEST(GoldTest, ARowThatNoAnswerCanBeScoredForIsRefusedWithWhatIsThereAndWhatIsWanted) {
  struct Case {
    const char* row;
    const char* says;
  };

  const Case cases[] = {
      {"{}", "no field `answer`"},
      {R"({"answer": null})", "`answer` is null, wanted: a text or a number"},
      {R"({"answer": true})", "`answer` is true, wanted: a text or a number"},
      {R"({"answer": {"text": "12"}})", "`answer` is an object, wanted: a text or a number"},
      {R"({"answer": 123456789012345678901234567890})", "too large to be read exactly"}};

  for (const char* const name : {"exact", "gsm8k", "text"}) {
    const auto verifier =
        Make(name, name == std::string("text") ? Json{{"property", "reversed"}} : Json::object());
    for (const Case& c : cases) {
      const absl::Status status = verifier->CheckRow(Json::parse(c.row));
      EXPECT_THAT(std::string(status.message()), HasSubstr(c.says)) << name;
      EXPECT_EQ(verifier->Score({.text = "12"}, Json::parse(c.row)).status(), status) << name;
    }
    EXPECT_TRUE(verifier->CheckRow({{"answer", 12}}).ok()) << name;
  }

  EXPECT_THAT(std::string(Make("exact")->CheckRow({{"answer", Json::array()}}).message()),
              HasSubstr("an empty list"));
  EXPECT_FALSE(Make("exact")->CheckRow({{"answer", {"a", nullptr}}}).ok());
  EXPECT_THAT(std::string(Make("gsm8k")->CheckRow({{"answer", "none"}}).message()),
              HasSubstr("is \"none\", wanted: a number"));
}

TEST(GoldTest, APropertyThatNeedsNoGoldTakesAnyRow) {
  EXPECT_TRUE(Make("text", {{"property", "length"}, {"target", 5}})->CheckRow(Json::object()).ok());
}

TEST(Gsm8kTest, ReadsTheNumberBehindTheLastMarkerAsARational) {
  const auto gsm8k = Make("gsm8k");
  const Json row = {{"answer", "48/2 = 24\n#### 1,234"}};
  struct Case {
    const char* text;
    double score;
  };

  for (const Case& c : {Case{"#### 1234", 1},
                        {"so\n#### 1,234\nbye", 1},
                        {"#### $1234.0", 1},
                        {"#### 1234.", 1},
                        {"#### 12 #### 1234", 1},
                        {"1234", 0},
                        {"#### 12,34", 0},
                        {"####", 0},
                        {"#### 1234 apples", 0},
                        {"#### 1235", 0},
                        {"#### -1234", 0},
                        {"", 0},
                        {"#### 2468/2", 1},
                        {"#### 1e3", 0},
                        {"#### 1234/0", 0}}) {
    EXPECT_EQ(Score(*gsm8k, c.text, row), c.score) << c.text;
  }

  EXPECT_FALSE(gsm8k->Score({.text = "#### 1"}, {{"answer", "no number"}}).ok());
  EXPECT_EQ(Score(*gsm8k, "#### 72", {{"answer", "72"}}), 1);
}

TEST(Gsm8kTest, EveryGoldAnswerScoresOneOnItsOwnRow) {
  SLUICE_NEEDS_TEST_DATA("gsm8k/train.jsonl");
  const auto gsm8k = Make("gsm8k");
  int rows = 0;
  for (const char* const file : {"gsm8k/train.jsonl", "gsm8k/test.jsonl"}) {
    const std::vector<std::string> lines =
        absl::StrSplit(*ReadFile(testing_data::Path(file)), '\n', absl::SkipEmpty());
    for (const std::string& line : lines) {
      const Json row = Json::parse(line);
      EXPECT_EQ(Score(*gsm8k, row["answer"], row), 1) << line;
      ++rows;
    }
  }

  EXPECT_EQ(rows, 7473 + 1319);
}

TEST(TextTest, ReversedCountsRightPlacesAndTheMissingEnd) {
  const auto reversed = Make("text", {{"property", "reversed"}});
  const Json row = {{"answer", "4821"}};
  EXPECT_EQ(Score(*reversed, "1284", row), 1);
  // A missing end counts as one more wrong place.
  EXPECT_EQ(Score(*reversed, "1284", row, /*truncated=*/true), 0.8);
  EXPECT_EQ(Score(*reversed, "1234", row), 0.75) << "places 1, 2 and 4 of 1284";
  EXPECT_EQ(Score(*reversed, "12", row), 0.5);
  EXPECT_EQ(Score(*reversed, "12847777", row), 0.5);
  EXPECT_EQ(Score(*reversed, "", row), 0);
}

TEST(TextTest, TheOtherPropertiesFollowTheirFormulas) {
  EXPECT_EQ(Score(*Make("text", {{"property", "length"}, {"target", 4}}), "one two three", {}),
            0.75);
  EXPECT_EQ(Score(*Make("text", {{"property", "length"}, {"target", 1}}), "a b c d", {}), 0);
  EXPECT_EQ(Score(*Make("text", {{"property", "repetition"}}), "a b a b a", {}), 0.5);
  EXPECT_EQ(Score(*Make("text", {{"property", "repetition"}, {"n", 1}}), "", {}), 0);
  EXPECT_EQ(Score(*Make("text", {{"property", "words"}, {"words", {"Dog", "cat"}}}),
                  "The dog's cat. Dogs!", {}),
            0.5);
  EXPECT_THAT(Score(*Make("text", {{"property", "letters"}, {"letters", "aE"}}), "A be!", {}),
              DoubleNear(2.0 / 3, 1e-12));
}

TEST(TextTest, AnArgumentWithAWrongValueIsNamedWithItAndNotCalledMissing) {
  const auto message = [](const Json& args) {
    return std::string(MakeVerifier("text", args).status().message());
  };
  EXPECT_THAT(message({{"property", "length"}, {"target", 0}}),
              HasSubstr("args.target is 0; a number from 1 to 100000 is needed"));
  EXPECT_THAT(message({{"property", "length"}, {"target", "x"}}),
              HasSubstr("args.target is \"x\"; a number"));
  EXPECT_THAT(message({{"property", "words"}, {"words", 5}}),
              HasSubstr("args.words is 5; a list of strings is needed"));
  EXPECT_THAT(message({{"property", "letters"}, {"letters", 5}}),
              HasSubstr("args.letters is 5; a string is needed"));
  EXPECT_THAT(message({{"property", "repetition"}, {"n", 2.5}}),
              HasSubstr("args.n is 2.5; a whole number from 1 to 8 is needed"));
  EXPECT_THAT(message({{"property", "repetition"}, {"n", 9}}), HasSubstr("args.n is 9; a whole"));
  EXPECT_THAT(message({{"property", 5}}), HasSubstr("args.property is 5; a string is needed"));

  EXPECT_THAT(message({{"property", "length"}}), HasSubstr("args.target, in words, is missing"));
  EXPECT_THAT(message({{"property", "words"}}), HasSubstr("args.words is missing or empty"));
}

TEST(RegistryTest, UnknownNamesAndArgumentsAreRefusedWithTheKnownOnes) {
  EXPECT_THAT(std::string(MakeVerifier("gsm", {}).status().message()),
              HasSubstr("code, countdown, exact, format, gsm8k, ifeval, json_schema, judge, math, "
                        "multiple_choice, plugin, regex, text"));
  EXPECT_THAT(std::string(MakeVerifier("exact", {{"trimm", true}}).status().message()),
              HasSubstr("args.trimm is unknown; the known ones are: trim, ignore_case"));
  EXPECT_THAT(std::string(MakeVerifier("exact", {{"trim", 3}}).status().message()),
              HasSubstr("args.trim is 3"));
  EXPECT_FALSE(MakeVerifier("text", {{"property", "beauty"}}).ok());
  EXPECT_FALSE(MakeVerifier("text", {{"property", "length"}}).ok());
  EXPECT_FALSE(MakeVerifier("text", {{"property", "length"}, {"target", -1}}).ok());
  EXPECT_FALSE(MakeVerifier("text", {{"property", "letters"}, {"letters", "é"}}).ok());
}

TEST(RegistryTest, HostileTextsGetAFiniteScoreInRangeFromEveryVerifier) {
  const std::map<std::string, std::vector<Json>> args = {
      {"countdown", {{{"use", "subset"}, {"valid", 0.5}}}},
      {"exact", {Json::object()}},
      {"format", {{{"tags", "answer"}}}},
      {"ifeval", {Json::object(), {{"mode", "loose"}, {"score", "fraction"}}}},
      {"json_schema", {{{"schema", {{"type", "object"}}}}}},
      {"multiple_choice", {Json::object()}},
      {"regex", {{{"pattern", "(#+|.*)*[0-9]+$"}}}},
      {"gsm8k", {Json::object(), {{"extract", "flexible"}}}},
      {"math", {Json::object(), {{"form", "final"}}}},
      {"text",
       {{{"property", "reversed"}},
        {{"property", "length"}, {"target", 9}},
        {{"property", "repetition"}},
        {{"property", "words"}, {"words", "x"}},
        {{"property", "letters"}, {"letters", "e"}}}}};

  SplitMix64 random(17);
  std::vector<std::string> texts = {"",
                                    "####",
                                    "#### " + std::string(100'000, '9'),
                                    "#### 0." + std::string(100'000, '0') + "1",
                                    std::string(1 << 20, '\xff'),
                                    std::string("\0\0#### 1", 9),
                                    "</think>",
                                    "<think></think><think>",
                                    std::string(1 << 20, ' '),
                                    "####" + std::string(50'000, ',')};

  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (uint64_t n = random.Below(60); n > 0; --n)
      text.push_back(random.Below(2) ? static_cast<char>(random.Next())
                                     : "#0123456789.,/-$ "[random.Below(17)]);
    texts.push_back(text);
  }

  for (const VerifierRow& row : Verifiers()) {
    // They do not score the text itself: judge_test.cc and tests/common/plugins have hostile
    // replies, and code_verifier_test.cc of the sandboxes hostile programs.
    if (row.name == "judge" || row.name == "plugin" || row.name == "code") continue;
    ASSERT_TRUE(args.contains(std::string(row.name))) << "no case for " << row.name;
    const Json gold = row.name == "countdown"         ? Json{{"answer", 3}, {"numbers", {1, 2}}}
                      : row.name == "multiple_choice" ? Json{{"answer", "B"}}
                      : row.name == "ifeval"
                          ? Json{{"instruction_id_list",
                                  {"detectable_format:title", "detectable_format:json_format"}},
                                 {"kwargs", {nullptr, nullptr}}}
                          : Json{{"answer", "#### 12"}};
    for (const Json& a : args.at(std::string(row.name))) {
      const auto verifier = Make(std::string(row.name), a);
      for (const std::string& text : texts) {
        const double score = Score(*verifier, text, gold);
        EXPECT_TRUE(std::isfinite(score) && score >= verifier->low() && score <= verifier->high());
      }
    }
  }
}

TEST(RationalTest, ReadsWhatIsANumberAndNothingElse) {
  EXPECT_EQ(ParseRational("0.5"), ParseRational("1/2"));
  EXPECT_EQ(ParseRational("-3.50"), ParseRational("-7/2"));
  EXPECT_EQ(ParseRational(".5"), ParseRational("1/2"));
  for (const char* const text : {"", ".", "-", "1.2.3", "1,23", ",123", "1,2345", "1/2/3", "0x10",
                                 "1 2", "--1", "1/", "/2", "1.5/2"})
    EXPECT_FALSE(ParseRational(text)) << text;
}

}  // namespace
}  // namespace sluice
