// Compares small tokenizers, which together use every component, with what tokenizers 0.23.3 made
// of the same files and of random texts. tests/golden/tokenizer_components.jsonl holds first the
// vocabularies, then the tokenizers with their cases.
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using nlohmann::json;

TEST(TokenizerComponentsTest, EqualTheReferenceInIdsOffsetsAndText) {
  const auto golden =
      ReadFile(std::string(SLUICE_SOURCE_DIR) + "/tests/golden/tokenizer_components.jsonl");
  ASSERT_TRUE(golden.ok()) << golden.status();
  std::vector<json> vocabularies;
  int tokenizers = 0;

  for (const absl::string_view line : absl::StrSplit(*golden, '\n', absl::SkipEmpty())) {
    json row = json::parse(line);
    if (row.contains("vocab")) {
      vocabularies.push_back(std::move(row));
      continue;
    }

    row["tokenizer"]["model"].update(vocabularies.at(row["vocabulary"].get<size_t>()));
    const auto tokenizer = Tokenizer::Parse(row["tokenizer"].dump());
    ASSERT_TRUE(tokenizer.ok()) << row["name"] << tokenizer.status();
    for (const json& c : row["cases"]) {
      const std::string text = c["text"];
      const auto encoding = (*tokenizer)->EncodeWithOffsets(text, {});
      ASSERT_TRUE(encoding.ok()) << encoding.status();

      EXPECT_EQ(encoding->ids, c["ids"].get<std::vector<int32_t>>()) << row["name"] << text;
      EXPECT_EQ(*(*tokenizer)->Encode(text, {}), encoding->ids) << row["name"] << text;

      json offsets = json::array();
      for (const Span& span : encoding->offsets) offsets.push_back({span.begin, span.end});
      EXPECT_EQ(offsets, c["offsets"]) << row["name"] << text;
      EXPECT_EQ((*tokenizer)->Decode(encoding->ids, /*skip_special=*/true),
                c["decoded"].get<std::string>())
          << row["name"] << text;
    }
    ++tokenizers;
  }

  EXPECT_GT(tokenizers, 25);
}

}  // namespace
}  // namespace sluice
