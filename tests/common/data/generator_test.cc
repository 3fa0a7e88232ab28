#include "common/data/generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/data/dataset.h"
#include "common/verifiers/verifier.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using testing::HasSubstr;

// The verifiers that score the answers to a generator's tasks.
std::vector<std::string> VerifiersOf(absl::string_view kind) {
  if (kind == "countdown") return {"countdown"};
  if (kind == "sort") return {"exact"};
  return {"exact", "math"};
}

TEST(GeneratorsTest, ASolutionHasTheFullScoreAtEveryLevelWithAnySeed) {
  for (const GeneratorRow& generator : Generators()) {
    for (const std::string& name : VerifiersOf(generator.name)) {
      const auto verifier = MakeVerifier(name, nlohmann::json::object());
      ASSERT_TRUE(verifier.ok()) << verifier.status();
      for (uint32_t level = 1; level <= generator.max_level; ++level) {
        for (uint64_t seed = 1; seed <= 40; ++seed) {
          const nlohmann::json row = GenerateRow(
              {.kind = std::string(generator.name), .levels = {level}, .seed = seed}, seed * 7);
          const auto verdict = (*verifier)->Score({row["solution"].get<std::string>()}, row);
          ASSERT_TRUE(verdict.ok()) << verdict.status() << " " << row;
          ASSERT_EQ(verdict->score, 1) << name << ", seed " << seed << ": " << row;
        }
      }
    }
  }
}

TEST(GeneratorsTest, ARowHasTheColumnsThatTheTableNamesAndALevel) {
  for (const GeneratorRow& generator : Generators()) {
    const nlohmann::json row =
        GenerateRow({.kind = std::string(generator.name), .levels = {1, 2}}, 3);
    std::set<std::string> names = {"level", "solution"}, found;
    names.insert(generator.columns.begin(), generator.columns.end());
    for (const auto& [name, value] : row.items()) found.insert(name);
    EXPECT_EQ(found, names) << generator.name;
    EXPECT_EQ(row["level"], 2);
    EXPECT_THAT(row["prompt"].get<std::string>(), testing::Not(testing::IsEmpty()));
  }
}

TEST(GeneratorsTest, ATaskDependsOnSeedPlaceAndLevelAlone) {
  for (const GeneratorRow& generator : Generators()) {
    const std::string kind(generator.name);
    const auto row = [&](GeneratorSpec spec, uint64_t index) {
      spec.kind = kind;
      return GenerateRow(spec, index);
    };
    EXPECT_EQ(row({.rows = 10, .levels = {3}}, 5), row({.rows = 999, .levels = {3}}, 5));
    EXPECT_EQ(row({.levels = {1, 3}}, 5), row({.levels = {3}}, 5));

    int same_seed = 0, same_place = 0;
    for (uint64_t i = 0; i < 100; ++i) {
      const nlohmann::json one = row({.levels = {3}}, i);
      same_seed += one == row({.levels = {3}, .seed = 2}, i) ? 1 : 0;
      same_place += one == row({.levels = {3}}, i + 1) ? 1 : 0;
    }
    EXPECT_LT(same_seed, 5) << kind;
    EXPECT_LT(same_place, 5) << kind;
  }
}

// If this fails, jobs that train on generated tasks do not go on with another build, because their
// data has changed.
TEST(GeneratorsTest, TheTasksAreTheSameOnEveryMachine) {
  const std::map<std::string, std::string> digests = {{"arithmetic", "f8d07b067f4e71ba"},
                                                      {"chain_sum", "97a7120351df1644"},
                                                      {"countdown", "6a5a0dced23cb665"},
                                                      {"sort", "a3fe40a3d3a1a0de"}};
  for (const GeneratorRow& generator : Generators()) {
    const std::string kind(generator.name);
    std::vector<uint32_t> levels(generator.max_level);
    for (uint32_t i = 0; i < generator.max_level; ++i) levels[i] = i + 1;
    std::string rows;
    for (uint64_t i = 0; i < 1000; ++i)
      absl::StrAppend(&rows, GenerateRow({.kind = kind, .levels = levels}, i).dump(), "\n");
    ASSERT_TRUE(digests.contains(kind)) << "add the digest of " << kind;
    EXPECT_EQ(absl::BytesToHexString(Sha256(rows).substr(0, 8)), digests.at(kind)) << kind;
  }
}

TEST(GeneratorsTest, AHigherLevelHasLongerProblems) {
  for (const GeneratorRow& generator : Generators()) {
    double before = 0;
    for (uint32_t level = 1; level <= generator.max_level; ++level) {
      double bytes = 0;
      for (uint64_t i = 0; i < 200; ++i) {
        const nlohmann::json row =
            GenerateRow({.kind = std::string(generator.name), .levels = {level}}, i);
        bytes += static_cast<double>(row["problem"].get<std::string>().size());
      }
      EXPECT_GT(bytes, before) << generator.name << " level " << level;
      before = bytes;
    }
  }
}

TEST(GeneratorsTest, ArithmeticHasNumbersOfAsManyDigitsAsTheLevelAndNoNegativeValue) {
  std::set<char> operators;
  for (uint64_t i = 0; i < 300; ++i) {
    const nlohmann::json row = GenerateRow({.kind = "arithmetic", .levels = {3}}, i);
    const auto problem = row["problem"].get<std::string>();
    const size_t space = problem.find(' ');
    operators.insert(problem[space + 1]);
    const size_t digits = problem[space + 1] == '*' ? 2 : 3;
    EXPECT_EQ(space, digits) << problem;
    EXPECT_EQ(problem.size(), 2 * digits + 3) << problem;
    EXPECT_NE(row["answer"].get<std::string>()[0], '-') << problem;
  }
  EXPECT_EQ(operators, (std::set<char>{'+', '-', '*'}));
}

TEST(GeneratorsTest, CountdownNeedsEachNumberOnce) {
  for (uint32_t level = 1; level <= 8; ++level) {
    const nlohmann::json row = GenerateRow({.kind = "countdown", .levels = {level}}, level);
    EXPECT_EQ(row["numbers"].size(), level + 1);
  }
}

TEST(GeneratorTextTest, TakesThePlaceOfAPath) {
  const GeneratorSpec spec = {.kind = "sort", .rows = 12, .levels = {1, 4}, .seed = 7};
  EXPECT_EQ(GeneratorText(spec), "generator:sort?rows=12&levels=1,4&seed=7");
  EXPECT_TRUE(IsGeneratorText(GeneratorText(spec)));
  EXPECT_FALSE(IsGeneratorText("/data/generator:sort"));

  const auto parsed = ParseGenerator(GeneratorText(spec));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(GeneratorText(*parsed), GeneratorText(spec));

  const auto plain = ParseGenerator("generator:sort");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(GeneratorText(*plain), "generator:sort?rows=10000&levels=1&seed=1");
}

TEST(GeneratorTextTest, WhatCannotBeMadeIsRefusedByValueAndLimit) {
  const auto refusal = [](absl::string_view text) {
    const absl::Status status = ParseGenerator(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal("generator:chess"), HasSubstr("kind is \"chess\", wanted: arithmetic, "));
  EXPECT_THAT(refusal("generator:sort?rows=0"), HasSubstr("rows is 0, wanted: 1 to 1000000"));
  EXPECT_THAT(refusal("generator:sort?rows=1000001"), HasSubstr("rows is 1000001"));
  EXPECT_THAT(refusal("generator:sort?levels=21"), HasSubstr("levels has 21"));
  EXPECT_THAT(refusal("generator:sort?levels=0"), HasSubstr("levels has 0"));
  EXPECT_THAT(refusal("generator:sort?levels="), HasSubstr("levels is \"\""));
  EXPECT_THAT(refusal("generator:sort?rows=-1"), HasSubstr("rows is \"-1\""));
  EXPECT_THAT(refusal("generator:sort?seed=x"), HasSubstr("seed is \"x\""));
  EXPECT_THAT(refusal("generator:sort?sed=1"), HasSubstr("\"sed\" is no value of a generator"));
}

TEST(GeneratedDatasetTest, HasAllColumnsAsFieldsButTheSolution) {
  const auto data = ReadDataset({.name = "made",
                                 .path = "generator:countdown?rows=3&levels=2",
                                 .fields = {{"prompt", "prompt"}, {"answer", "answer"}}});
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ(data->rows(), 3u);
  const nlohmann::json row = nlohmann::json::parse(data->json(0));
  for (const char* field : {"prompt", "problem", "answer", "numbers", "level"})
    EXPECT_TRUE(row.contains(field)) << field;
  EXPECT_FALSE(row.contains("solution"));
}

TEST(GeneratedDatasetTest, AFieldMayHaveAnotherColumn) {
  const auto data = ReadDataset({.name = "made",
                                 .path = "generator:countdown?rows=3",
                                 .fields = {{"prompt", "problem"}, {"answer", "solution"}}});
  ASSERT_TRUE(data.ok()) << data.status();
  const nlohmann::json row = nlohmann::json::parse(data->json(0));
  EXPECT_EQ(row["prompt"], row["problem"]);
  EXPECT_THAT(row["answer"].get<std::string>(), testing::ContainsRegex("[-+]"));

  const auto none =
      ReadDataset({.name = "made", .path = "generator:sort", .fields = {{"prompt", "question"}}});
  EXPECT_EQ(ReasonOf(none.status()), "BAD_ROW");
  EXPECT_THAT(std::string(none.status().message()),
              testing::AllOf(HasSubstr("generator:sort: row 1"), HasSubstr("question")));
}

TEST(GeneratedDatasetTest, ALookMakesNoMoreRows) {
  const auto data = ReadDataset({.name = "made",
                                 .path = "generator:sort",
                                 .fields = {{"prompt", "prompt"}},
                                 .first_rows = 5});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->rows(), 5u);
  EXPECT_EQ(data->line(4), 5u);
}

TEST(GeneratedDatasetTest, AWrongGeneratorIsAnErrorOfItsSource) {
  EXPECT_THAT(
      std::string(
          ReadDataset({.name = "made", .path = "generator:chess", .fields = {{"prompt", "prompt"}}})
              .status()
              .message()),
      HasSubstr("data source made: "));
}

}  // namespace
}  // namespace sluice
