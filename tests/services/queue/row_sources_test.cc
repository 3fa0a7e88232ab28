#include "services/queue/row_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/testing/data.h"

namespace sluice::queue {
namespace {

using ::testing::HasSubstr;

Spec SpecWithLevels(Sampler sampler, const std::string& path) {
  Spec spec;
  spec.sampler = sampler;
  spec.sources = {{.name = "sums",
                   .path = path,
                   .weight = 1,
                   .fields = {{"prompt", "prompt"}, {"level", "level"}}}};
  return spec;
}

std::string WriteLevels(const std::string& text) {
  const std::string path = testing_data::TempPath("row_sources.jsonl");
  EXPECT_TRUE(WriteFileAtomic(path, text).ok());
  return path;
}

TEST(RowSourcesTest, TheSamplerLevelsReadsTheLevelOfEachRow) {
  const std::string path =
      WriteLevels("{\"prompt\": \"a\", \"level\": 3}\n{\"prompt\": \"b\", \"level\": -1}\n");
  const auto rows = ReadRowSources("job", SpecWithLevels(Sampler::kLevels, path), nullptr);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)->level(0, 0), 3);
  EXPECT_EQ((*rows)->level(0, 1), -1);
}

TEST(RowSourcesTest, ARowWithoutALevelIsRefusedByItsNumber) {
  for (const char* level : {"", ", \"level\": null", ", \"level\": \"2\"", ", \"level\": 1.5"}) {
    const std::string path = WriteLevels(
        absl::StrCat("{\"prompt\": \"a\", \"level\": 3}\n{\"prompt\": \"b\"", level, "}\n"));
    const absl::Status status =
        ReadRowSources("job", SpecWithLevels(Sampler::kLevels, path), nullptr).status();
    EXPECT_FALSE(status.ok()) << level;
    // A field that only some rows have is a bad row for the reader of the file already.
    if (level[0] == '\0') continue;
    EXPECT_EQ(ReasonOf(status), "NO_LEVEL") << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("data.train sums: row 1 of "));
    EXPECT_THAT(DetailOf(status).hint, HasSubstr("data.train.N.fields"));
  }
}

TEST(RowSourcesTest, TheSamplerAdaptiveTakesNoMoreRowsThanItCanRemember) {
  const auto read = [](uint64_t rows) {
    return ReadRowSources(
               "job",
               SpecWithLevels(Sampler::kAdaptive,
                              absl::StrCat("generator:arithmetic?rows=", rows, "&seed=1")),
               nullptr)
        .status();
  };
  EXPECT_TRUE(read(1000).ok());
  const absl::Status many = read(kMostAdaptiveRows + 1);
  EXPECT_EQ(ReasonOf(many), "TOO_MANY_ROWS") << many;
  EXPECT_THAT(std::string(many.message()), HasSubstr("100001 rows"));
}

}  // namespace
}  // namespace sluice::queue
