#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/testing/data.h"
#include "nlohmann/json.hpp"
#include "tests/tools/sluice/run_command.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/data/data_check.h"

namespace sluice::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kDigits[] = SLUICE_SOURCE_DIR "/configs/examples/digits";
constexpr char kDigitsJob[] = SLUICE_SOURCE_DIR "/configs/examples/digits.yaml";

// Runs `sluice data check ARGS..`.
CommandRun RunDataCheckCommand(std::vector<std::string> args) {
  return RunCommand(DataCommands().front(), std::move(args));
}

std::string WriteRows(const std::string& name, const std::string& rows) {
  const std::string path = testing_data::TempPath(name);
  EXPECT_TRUE(WriteFileAtomic(path, rows).ok());
  return path;
}

// A question of 16 words, so that it can share 13 of them.
std::string Question(const std::string& end) {
  return "A baker sells twelve loaves at three coins each on every market day of " + end;
}

std::string RowText(const std::string& prompt, const std::string& answer) {
  return absl::StrCat(R"({"prompt": ")", prompt, R"(", "answer": ")", answer, "\"}\n");
}

TEST(DataCheckCommandTest, FindsABadRowAGoldThatCannotBeReadADuplicateAndAnOverlap) {
  const std::string train = WriteRows(
      "train.jsonl",
      absl::StrCat(RowText("one", "#### 1"), "{\"prompt\": \n", RowText("two", "no number"),
                   RowText("one", "#### 2"), RowText(Question("the year"), "#### 4"), "\n",
                   R"({"x": 1})", "\n", R"({"prompt": "", "answer": "#### 1"})", "\n"));
  const std::string held_out =
      WriteRows("test.jsonl", RowText("three", "#### 3") + RowText(Question("the week"), "#### 4"));

  const CommandRun ran =
      RunDataCheckCommand({train, "--eval", held_out, "--verifier", "gsm8k", "-o", "json"});
  EXPECT_EQ(ran.code, kFailed);
  EXPECT_EQ(ran.err, "");

  const nlohmann::json report = ran.json();
  EXPECT_EQ(report["failed"], true);
  const nlohmann::json& source = report["sources"][0];
  EXPECT_EQ(source["role"], "train");
  EXPECT_EQ(source["rows"], 4);
  EXPECT_EQ(source["bad"]["count"], 3);
  EXPECT_THAT(source["bad"]["first"].get<std::vector<std::string>>(),
              ElementsAre(HasSubstr("train.jsonl:2:"), HasSubstr("train.jsonl:7: no column"),
                          HasSubstr("train.jsonl:8: the prompt")));
  EXPECT_EQ(source["unscorable"]["count"], 1);
  EXPECT_THAT(source["unscorable"]["first"].get<std::vector<std::string>>(),
              ElementsAre(AllOf(HasSubstr("train.jsonl:3: "), HasSubstr("no number"))));
  EXPECT_EQ(source["duplicates"]["count"], 1);
  EXPECT_EQ(source["conflicts"], 1);
  EXPECT_THAT(source["duplicates"]["first"].get<std::vector<std::string>>(),
              ElementsAre(AllOf(HasSubstr("train.jsonl:4: "), HasSubstr("train.jsonl:1"),
                                HasSubstr("with another answer"))));
  EXPECT_TRUE(source["tokens"].is_null());

  EXPECT_EQ(report["overlap"]["count"], 1);
  EXPECT_THAT(report["overlap"]["first"].get<std::vector<std::string>>(),
              ElementsAre(AllOf(HasSubstr("test.jsonl:2: "), HasSubstr("train.jsonl:5"),
                                HasSubstr("A baker sells twelve"))));
}

TEST(DataCheckCommandTest, PrintsATableForPeople) {
  const std::string rows = WriteRows("rows.jsonl", RowText("a", "1") + "broken\n");
  const CommandRun ran = RunDataCheckCommand({rows, "--verifier", "exact"});
  EXPECT_EQ(ran.code, kFailed);
  EXPECT_THAT(ran.out, AllOf(HasSubstr("UNSCORABLE"), HasSubstr("bad rows of"),
                             HasSubstr("rows.jsonl:2:1")));
}

TEST(DataCheckCommandTest, RowsWithoutFaultExitWith0AndNamesNothing) {
  const std::string rows = WriteRows("good.jsonl", RowText("a", "1") + RowText("b", "2"));
  const CommandRun ran = RunDataCheckCommand({rows, "-o", "json"});
  EXPECT_EQ(ran.code, kDone);
  const nlohmann::json report = ran.json();
  EXPECT_EQ(report["sources"][0]["rows"], 2);
  EXPECT_TRUE(report["sources"][0]["unscorable"].is_null());  // No verifier, so not checked.
  EXPECT_TRUE(report["overlap"].is_null());
}

TEST(DataCheckCommandTest, AJobIsCheckedWithItsModelRewardsAndEvaluation) {
  const CommandRun ran =
      RunDataCheckCommand({kDigitsJob, "--set", "data.order.max_prompt=4", "-o", "json"});
  const nlohmann::json report = ran.json();
  ASSERT_EQ(report["sources"].size(), 2u) << ran.err;
  EXPECT_EQ(report["sources"][0]["name"], "digits");
  EXPECT_EQ(report["sources"][1]["role"], "eval");
  EXPECT_EQ(report["sources"][0]["bad"]["count"], 0);
  EXPECT_EQ(report["sources"][0]["unscorable"]["count"], 0);

  // A prompt is four digits and =.
  const nlohmann::json& tokens = report["sources"][0]["tokens"];
  EXPECT_EQ(tokens["max_prompt"], 4);
  EXPECT_EQ(tokens["too_long"], tokens["prompts"]);
  EXPECT_EQ(tokens["p50"], tokens["max"]);
  EXPECT_EQ(tokens["histogram"].size(), 1u);
}

TEST(DataCheckCommandTest, BadRowsThatTheJobSkipsAreShownButDoNotFail) {
  std::string job = *ReadFile(kDigitsJob);
  const std::string rows = WriteRows("skipped.jsonl", "{\"digits\": \"1234\"}\nbroken\n");
  const auto check = [&](const char* on_bad_row) {
    return RunDataCheckCommand({kDigitsJob, "--set", absl::StrCat("data.train.0.path=", rows),
                                "--set", absl::StrCat("data.order.on_bad_row=", on_bad_row), "-o",
                                "json"});
  };
  const CommandRun skipping = check("skip");
  EXPECT_EQ(skipping.code, kDone) << skipping.out;
  EXPECT_EQ(skipping.json()["sources"][0]["bad"]["count"], 1);
  EXPECT_EQ(check("fail").code, kFailed);
}

TEST(DataCheckCommandTest, TheFormatSaysWhichFieldsMakeTheQuestion) {
  const std::string rows = WriteRows("sums.jsonl", R"({"prompt": "add", "a": 1, "answer": 1})"
                                                   "\n"
                                                   R"({"prompt": "add", "a": 2, "answer": 2})"
                                                   "\n"
                                                   R"({"prompt": "add", "a": 1, "answer": 1})"
                                                   "\n");
  const auto duplicates = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {rows, "-o", "json", "--field", "a=a"});
    return RunDataCheckCommand(more).json()["sources"][0]["duplicates"]["count"];
  };
  EXPECT_EQ(duplicates({}), 2);
  EXPECT_EQ(duplicates({"--format", "{prompt} {a}"}), 1);
}

TEST(DataCheckCommandTest, TheQuestionIsAlsoInThePartsOfMessages) {
  const auto row = [](const std::string& text) {
    return nlohmann::json{
               {"prompt", {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", text}}}}}}}}
               .dump() +
           "\n";
  };
  const std::string system = R"({"prompt": [{"role": "system", "content": "Be brief."}]})"
                             "\n";
  const std::string train = WriteRows("parts.jsonl", row("one") + row("two") + system);
  const std::string held_out = WriteRows("parts_eval.jsonl", row("two") + row("three"));
  const nlohmann::json report =
      RunDataCheckCommand({train, "--eval", held_out, "-o", "json"}).json();
  EXPECT_EQ(report["sources"][0]["duplicates"]["count"], 0);
  EXPECT_THAT(report["overlap"]["first"].get<std::vector<std::string>>(),
              ElementsAre(HasSubstr("parts_eval.jsonl:1: ")));
}

TEST(DataCheckCommandTest, MessagesOfTheSystemAreNoQuestion) {
  const auto row = [](const std::string& system, const std::string& user) {
    return nlohmann::json{
               {"prompt",
                {{{"role", "system"}, {"content", system}}, {{"role", "user"}, {"content", user}}}}}
               .dump() +
           "\n";
  };
  const std::string train = WriteRows("chat.jsonl", row(Question("always"), "one"));
  const std::string held_out =
      WriteRows("chat_eval.jsonl", row(Question("always"), "two") + row("Be brief.", "one"));
  const CommandRun ran = RunDataCheckCommand({train, "--eval", held_out, "-o", "json"});
  EXPECT_THAT(ran.json()["overlap"]["first"].get<std::vector<std::string>>(),
              ElementsAre(HasSubstr("chat_eval.jsonl:2: ")));
}

TEST(DataCheckCommandTest, ShowLimitsTheRowsThatAreNamedAndNotTheirCount) {
  std::string rows;
  for (int i = 0; i < 5; ++i) rows += "broken\n";
  const std::string path = WriteRows("broken.jsonl", rows);
  const nlohmann::json bad =
      RunDataCheckCommand({path, "--show", "2", "-o", "json"}).json()["sources"][0]["bad"];
  EXPECT_EQ(bad["count"], 5);
  EXPECT_EQ(bad["first"].size(), 2u);
  EXPECT_THAT(RunDataCheckCommand({path, "--show", "2"}).out, HasSubstr(".. and 3 more"));
}

TEST(DataCheckCommandTest, ARowNestedDeeplyIsABadRowAndTheRestIsRead) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const std::string path =
      WriteRows("deep.jsonl", absl::StrCat("{\"prompt\": ", deep, "}\n", RowText("a", "1")));
  const nlohmann::json source = RunDataCheckCommand({path, "-o", "json"}).json()["sources"][0];
  EXPECT_EQ(source["rows"], 1);
  EXPECT_THAT(source["bad"]["first"][0].get<std::string>(),
              AllOf(HasSubstr("deep.jsonl:1:"), HasSubstr("100001 deep")));
}

TEST(DataCheckCommandTest, OptionsThatContradictAJobFileOrEachOtherAreRefused) {
  const std::string job = kDigitsJob;
  const std::string rows = WriteRows("rows.jsonl", RowText("a", "1"));
  const auto refusal = [](std::vector<std::string> args) {
    const CommandRun ran = RunDataCheckCommand(std::move(args));
    EXPECT_EQ(ran.code, kMisuse);
    EXPECT_EQ(ran.out, "");
    return ran.err;
  };
  EXPECT_THAT(refusal({job, "--verifier", "exact"}), HasSubstr("--verifier is for files of data"));
  EXPECT_THAT(refusal({rows, job}), HasSubstr("check it alone"));
  EXPECT_THAT(refusal({rows, "--set", "name=x"}), HasSubstr("--set changes a job file"));
  EXPECT_THAT(refusal({rows, "--args", "{}"}), HasSubstr("--args needs --verifier"));
  EXPECT_THAT(refusal({rows, "--verifier", "exact", "--args", "1"}), HasSubstr("a JSON object"));
  EXPECT_THAT(refusal({rows, "--max-prompt", "5"}), HasSubstr("needs --model"));
  EXPECT_THAT(refusal({rows, "--verifier", "exat"}), HasSubstr("unknown verifier \"exat\""));
  EXPECT_THAT(refusal({rows, "--field", "x"}), HasSubstr("NAME=COLUMN"));
}

TEST(DataCheckCommandTest, AFileWithoutRowsIsAFault) {
  const CommandRun ran = RunDataCheckCommand({WriteRows("empty.jsonl", "\n\n")});
  EXPECT_EQ(ran.code, kFailed);
  EXPECT_THAT(ran.out, HasSubstr("empty.jsonl has no row to use"));
}

TEST(DataCheckCommandTest, AGeneratorIsCheckedAsAFileIs) {
  const CommandRun ran =
      RunDataCheckCommand({"generator:countdown?rows=50&levels=3", "--verifier", "countdown",
                           "--eval", "generator:countdown?rows=50&levels=3&seed=2", "-o", "json"});
  EXPECT_EQ(ran.code, kDone) << ran.out;
  EXPECT_EQ(ran.json()["sources"][0]["rows"], 50);

  const CommandRun same = RunDataCheckCommand(
      {"generator:sort?rows=5&levels=4", "--eval", "generator:sort?rows=5&levels=4", "-o", "json"});
  EXPECT_EQ(same.code, kFailed);
  EXPECT_EQ(same.json()["overlap"]["count"], 5);
}

TEST(DataCheckCommandTest, AnAbsentFileIsNotFound) {
  EXPECT_EQ(RunDataCheckCommand({"/does/not/exist.jsonl"}).code, kNotFound);
}

TEST(DataCheckCommandTest, AModelCountsTheTokensOfFilesToo) {
  const CommandRun ran =
      RunDataCheckCommand({absl::StrCat(kDigits, "/train.jsonl"), "--prompt", "digits", "--answer",
                           "digits", "--format", "{digits}=", "--model", kDigits, "-o", "json"});
  const nlohmann::json source = ran.json()["sources"][0];
  const nlohmann::json& tokens = source["tokens"];
  EXPECT_EQ(tokens["prompts"], source["rows"]) << ran.err;
  EXPECT_EQ(tokens["p50"], 6);
  EXPECT_EQ(tokens["too_long"], 0);
}

TEST(LengthCountsTest, QuantilesAreThoseOfTheSortedLengths) {
  LengthCounts counts;
  EXPECT_EQ(counts.Quantile(0.5), 0u);
  EXPECT_THAT(counts.Histogram(), IsEmpty());
  for (uint64_t i = 1; i <= 100; ++i) counts.Add(i);
  EXPECT_EQ(counts.Quantile(0.5), 50u);
  EXPECT_EQ(counts.Quantile(0.99), 99u);
  EXPECT_EQ(counts.Quantile(1), 100u);
  EXPECT_EQ(counts.CountAbove(90), 10u);
  EXPECT_EQ(counts.CountAbove(100), 0u);
}

TEST(LengthCountsTest, TheHistogramHasEveryRangeBetweenTheShortestAndTheLongest) {
  LengthCounts counts;
  for (const uint64_t tokens : {5, 7, 8, 40}) counts.Add(tokens);
  std::vector<std::string> ranges;
  for (const LengthCounts::Range& range : counts.Histogram())
    ranges.push_back(absl::StrCat(range.from, "-", range.to, ": ", range.prompts));
  EXPECT_THAT(ranges, ElementsAre("4-7: 2", "8-15: 1", "16-31: 0", "32-63: 1"));
}

}  // namespace
}  // namespace sluice::cli
