#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/data/dataset.h"
#include "common/testing/data.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {
using testing::HasSubstr;

class JsonlTest : public testing::Test {
 protected:
  absl::StatusOr<Dataset> Read(const std::string& text,
                               std::map<std::string, std::string> fields = {{"prompt", "q"}},
                               bool skip = false) {
    const std::string path = testing_data::TempPath("rows.jsonl");
    EXPECT_TRUE(WriteFileAtomic(path, text).ok());
    return ReadDataset(
        {.name = "rows", .path = path, .fields = std::move(fields), .skip_bad_rows = skip});
  }
};

TEST_F(JsonlTest, FieldsAreMappedAndKeysSorted) {
  const auto data =
      Read("{\"q\": \"1+1\", \"a\": 2, \"other\": 0}\n\n{\"a\": 3, \"q\": \"1+2\"}\r\n",
           {{"prompt", "q"}, {"answer", "a"}});
  ASSERT_TRUE(data.ok()) << data.status();

  ASSERT_EQ(data->rows(), 2u);
  EXPECT_EQ(data->json(0), "{\"answer\":2,\"prompt\":\"1+1\"}");
  EXPECT_EQ(data->json(1), "{\"answer\":3,\"prompt\":\"1+2\"}");
}

TEST_F(JsonlTest, AColumnInsideAnObjectIsNamedWithADot) {
  const auto data = Read("{\"q\": \"x\", \"reward_model\": {\"ground_truth\": \"7\"}}\n",
                         {{"prompt", "q"}, {"answer", "reward_model.ground_truth"}});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->json(0), "{\"answer\":\"7\",\"prompt\":\"x\"}");
}

TEST_F(JsonlTest, ABrokenLineIsNamedByFileLineAndColumn) {
  const auto data = Read("{\"q\": 1}\n{\"q\": \n");
  EXPECT_EQ(ReasonOf(data.status()), "BAD_ROW");
  EXPECT_THAT(std::string(data.status().message()),
              testing::AllOf(HasSubstr(".jsonl:2:"), HasSubstr("syntax error")));
  EXPECT_THAT(DetailOf(data.status()).hint, HasSubstr("on_bad_row"));
}

TEST_F(JsonlTest, AMissingColumnIsNamedWithThoseThatAreThere) {
  const auto data = Read("{\"question\": \"x\"}\n");
  EXPECT_THAT(std::string(data.status().message()),
              testing::AllOf(HasSubstr("no column \"q\""), HasSubstr("question")));
}

TEST_F(JsonlTest, ALineThatIsNoObjectIsRefused) {
  EXPECT_THAT(std::string(Read("[1]\n").status().message()), HasSubstr("found array"));
}

TEST_F(JsonlTest, BytesThatAreNoUtf8AreRefused) {
  EXPECT_EQ(ReasonOf(Read("{\"q\": \"\xff\"}\n").status()), "BAD_ROW");
}

TEST_F(JsonlTest, ALookAtTheFirstRowsReadsNoMoreAndKnowsTheirLines) {
  const std::string path = testing_data::TempPath("rows.jsonl");
  ASSERT_TRUE(WriteFileAtomic(path, "{\"q\": 1}\n\n{\"q\": 2}\nbroken\n").ok());
  const auto look =
      ReadDataset({.name = "rows", .path = path, .fields = {{"prompt", "q"}}, .first_rows = 2});
  ASSERT_TRUE(look.ok()) << look.status();

  EXPECT_EQ(look->rows(), 2u);
  EXPECT_EQ(look->line(1), 3u);

  const std::string row = absl::StrCat("{\"q\": \"", std::string(1 << 19, 'x'), "\"}\n");
  std::string large;
  while (large.size() <= Dataset::kMaxHeadBytes) large += row;
  ASSERT_TRUE(WriteFileAtomic(path, large).ok());
  const auto head =
      ReadDataset({.name = "rows", .path = path, .fields = {{"prompt", "q"}}, .first_rows = 100});
  ASSERT_TRUE(head.ok()) << head.status();

  EXPECT_EQ(head->rows(), Dataset::kMaxHeadBytes / row.size());
}

TEST_F(JsonlTest, BadRowsAreSkippedAndCountedWhereAskedFor) {
  const auto data = Read("{\"q\": 1}\nbroken\n{\"q\": 2}\n{}\n", {{"prompt", "q"}}, /*skip=*/true);
  ASSERT_TRUE(data.ok()) << data.status();

  EXPECT_EQ(data->rows(), 2u);
  EXPECT_EQ(data->skipped(), 2u);
  EXPECT_THAT(data->first_skipped(), HasSubstr(".jsonl:2:"));
}

TEST_F(JsonlTest, ARowAboveTheLimitIsRefusedWithBothNumbers) {
  const auto data = Read("{\"q\": \"" + std::string(Dataset::kMaxRowBytes, 'x') + "\"}\n");
  EXPECT_THAT(std::string(data.status().message()), HasSubstr("the limit is 1048576"));
}

TEST_F(JsonlTest, ALineAboveTheLimitIsABadRowAndTheNextOnesAreRead) {
  const std::string long_line = "{\"q\": \"" + std::string(Dataset::kMaxLineBytes, 'x') + "\"}\n";
  const auto data = Read("{\"q\": 1}\n" + long_line + "{\"q\": 3}", {{"prompt", "q"}}, true);
  ASSERT_TRUE(data.ok()) << data.status();

  EXPECT_EQ(data->rows(), 2u);
  EXPECT_EQ(data->skipped(), 1u);
  EXPECT_THAT(data->first_skipped(), HasSubstr(".jsonl:2:1: the line has more than 67108864"));
}

TEST_F(JsonlTest, ALineAcrossPiecesOfTheFileIsWhole) {
  // Lines of 7 to 17 bytes, of which many lie across the end of a piece of 1 MiB.
  std::string text;
  uint64_t rows = 0;
  for (; text.size() < (3u << 20); ++rows) absl::StrAppend(&text, "{\"q\":", rows, "}\n");
  const auto data = Read(text);
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ(data->rows(), rows);
  for (uint64_t i = 0; i < rows; ++i)
    ASSERT_EQ(data->json(i), absl::StrCat("{\"prompt\":", i, "}"));
}

TEST_F(JsonlTest, AVisitorGetsGoodRowsAndBadOnesAndNothingIsKept) {
  const std::string path = testing_data::TempPath("rows.jsonl");
  ASSERT_TRUE(WriteFileAtomic(path, "{\"q\": 1}\nbroken\n\n{\"q\": 2}\n{}\n").ok());
  std::vector<std::string> rows, bad;
  const auto data =
      ReadDataset({.name = "rows",
                   .path = path,
                   .fields = {{"prompt", "q"}},
                   .visit_row =
                       [&](const nlohmann::json&, const std::string& text, const RowPlace& place) {
                         rows.push_back(absl::StrCat(place.ToString(), " ", text));
                       },
                   .visit_bad_row = [&](const std::string& wrong) { bad.push_back(wrong); }});
  ASSERT_TRUE(data.ok()) << data.status();

  EXPECT_EQ(data->rows(), 0u);
  EXPECT_THAT(rows, testing::ElementsAre(absl::StrCat(path, ":1 {\"prompt\":1}"),
                                         absl::StrCat(path, ":4 {\"prompt\":2}")));
  EXPECT_THAT(bad, testing::ElementsAre(HasSubstr(".jsonl:2:"), HasSubstr(".jsonl:5: no column")));
}

TEST_F(JsonlTest, AnAnswerMayBeAbsentFromAllRowsButNotFromSome) {
  const std::map<std::string, std::string> fields = {{"prompt", "prompt"}, {"answer", "answer"}};
  EXPECT_TRUE(Read("{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n", fields).ok());
  EXPECT_EQ(
      ReasonOf(Read("{\"prompt\": \"a\", \"answer\": 1}\n{\"prompt\": \"b\"}\n", fields).status()),
      "BAD_ROW");
  EXPECT_EQ(
      ReasonOf(Read("{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"answer\": 1}\n", fields).status()),
      "BAD_ROW");
}

TEST_F(JsonlTest, APromptThatIsNoTextOrEmptyIsABadRowWhereAskedFor) {
  const std::string path = testing_data::TempPath("prompts.jsonl");
  const auto read = [&](const std::string& prompt) {
    EXPECT_TRUE(WriteFileAtomic(path, "{\"q\": \"good\"}\n\n{\"q\": " + prompt + "}\n").ok());
    return ReadDataset({.name = "rows",
                        .path = path,
                        .fields = {{"prompt", "q"}},
                        .check_prompts = true,
                        .bad_row_hint = "mend it"})
        .status();
  };

  for (const char* prompt : {"5", "null", "\"\"", "[]", "{}", "[1]", "true"}) {
    const absl::Status status = read(prompt);
    EXPECT_EQ(ReasonOf(status), "BAD_ROW") << prompt;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::string(".jsonl:3: the prompt, column \"q\", is ") + prompt));
    EXPECT_EQ(DetailOf(status).hint, "mend it");
  }

  EXPECT_TRUE(read("\"5\"").ok());
  EXPECT_TRUE(read("[{\"role\": \"user\", \"content\": \"x\"}]").ok());
}

TEST_F(JsonlTest, AnEmptyFileIsRefused) { EXPECT_EQ(ReasonOf(Read("\n\n").status()), "NO_ROWS"); }

TEST_F(JsonlTest, AnAbsentFileIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(
      ReadDataset({.name = "x", .path = "/does/not/exist.jsonl", .fields = {{"prompt", "q"}}})
          .status()));
}

TEST_F(JsonlTest, ARowThatNestsTooDeeplyIsRefusedBeforeItIsCopied) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const auto data = Read("{\"q\": 1}\n{\"q\": " + deep + "}\n");
  EXPECT_EQ(ReasonOf(data.status()), "BAD_ROW");
  EXPECT_THAT(std::string(data.status().message()),
              testing::AllOf(HasSubstr(".jsonl:2:"), HasSubstr("100001 deep"),
                             HasSubstr("the limit is 64")));

  const std::string most =
      std::string(Dataset::kMaxDepth - 1, '[') + std::string(Dataset::kMaxDepth - 1, ']');
  EXPECT_TRUE(Read("{\"q\": " + most + "}\n").ok());
  EXPECT_FALSE(Read("{\"q\": [" + most + "]}\n").ok());
}

class ScorableRowsTest : public JsonlTest {
 protected:
  // Reads `text` with a check that treats rows with a null answer as rows that cannot be scored.
  absl::StatusOr<Dataset> ReadScorable(const std::string& text) {
    const std::string path = testing_data::TempPath("golds.jsonl");
    EXPECT_TRUE(WriteFileAtomic(path, text).ok());

    const auto check = [](const nlohmann::json& row) {
      return row["answer"].is_null() ? absl::InvalidArgumentError("`answer` is null")
                                     : absl::OkStatus();
    };

    return ReadDataset({.name = "golds",
                        .path = path,
                        .fields = {{"prompt", "q"}, {"answer", "a"}},
                        .check_scorable = check});
  }
};

TEST_F(ScorableRowsTest, RowsThatCannotBeScoredAreSetAsideAndCounted) {
  const auto data = ReadScorable(
      "{\"q\": 1, \"a\": 1}\n\n{\"q\": 2, \"a\": null}\n{\"q\": 3, \"a\": 3}\n{\"q\": 4, \"a\": "
      "null}\n");
  ASSERT_TRUE(data.ok()) << data.status();

  ASSERT_EQ(data->rows(), 2u);
  EXPECT_EQ(data->json(1), "{\"answer\":3,\"prompt\":3}");
  EXPECT_EQ(data->set_aside(), 2u);
  EXPECT_THAT(data->first_set_aside(), HasSubstr("golds.jsonl:3: `answer` is null"));
}

TEST_F(ScorableRowsTest, AFileWithoutOneSuchRowIsRefusedWithTheSourceAndTheFirstRow) {
  const auto data = ReadScorable("{\"q\": 1, \"a\": null}\n{\"q\": 2, \"a\": null}\n");
  EXPECT_EQ(ReasonOf(data.status()), "UNSCORABLE");
  EXPECT_THAT(std::string(data.status().message()),
              testing::AllOf(HasSubstr("data source golds"), HasSubstr("any of its 2 rows"),
                             HasSubstr("golds.jsonl:1: `answer` is null")));
}

TEST_F(JsonlTest, OtherFormatsAreRefusedByName) {
  const absl::Status status =
      ReadDataset({.name = "x", .path = "rows.csv", .fields = {{"prompt", "q"}}}).status();
  EXPECT_EQ(ReasonOf(status), "UNSUPPORTED");
  EXPECT_THAT(std::string(status.message()), HasSubstr("CSV"));
}

TEST_F(JsonlTest, Gsm8kReadsWhole) {
  SLUICE_NEEDS_TEST_DATA("gsm8k/train.jsonl");
  const auto data = ReadDataset({.name = "gsm8k",
                                 .path = testing_data::Path("gsm8k/train.jsonl"),
                                 .fields = {{"prompt", "question"}, {"answer", "answer"}}});
  ASSERT_TRUE(data.ok()) << data.status();

  EXPECT_EQ(data->rows(), 7473u);
  EXPECT_THAT(std::string(data->json(0)), HasSubstr("#### 72"));
}

}  // namespace
}  // namespace sluice
