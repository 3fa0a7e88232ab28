// Tests every case of the shared tokenizers. The expected ids come from the reference library, and
// so do the decoded texts, once with special tokens and once without.
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/base/splitmix.h"
#include "common/base/utf8.h"
#include "common/tokenizer/detokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/common/tokenizer/shared.h"

namespace sluice {
namespace {

using nlohmann::json;

class SharedTokenizerTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    SLUICE_NEEDS_TEST_DATA("tokenizers/" + std::string(GetParam()) + "/cases.jsonl");
    auto parsed = Tokenizer::Parse(shared_tokenizers::Json(GetParam()));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    tokenizer_ = *std::move(parsed);
    for (const absl::string_view line :
         absl::StrSplit(*ReadFile(shared_tokenizers::Folder(GetParam()) + "/cases.jsonl"), '\n',
                        absl::SkipEmpty())) {
      cases_.push_back(json::parse(line));
    }

    ASSERT_GT(cases_.size(), 500u);
  }
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<json> cases_;
};

std::vector<int32_t> Ids(const json& list) { return list.get<std::vector<int32_t>>(); }

TEST_P(SharedTokenizerTest, EncodesEveryText) {
  for (const json& c : cases_) {
    if (c["text"].is_null()) continue;
    const std::string text = c["text"];
    const auto ids = tokenizer_->Encode(text, {.add_special = false});
    ASSERT_TRUE(ids.ok()) << ids.status();

    EXPECT_EQ(*ids, Ids(c["ids"])) << c["group"] << text;
    EXPECT_EQ(*tokenizer_->Encode(text, {.add_special = true}),
              Ids(c.contains("ids_special") ? c["ids_special"] : c["ids"]))
        << c["group"] << text;
  }
}

TEST_P(SharedTokenizerTest, DecodesEveryListOfIds) {
  for (const json& c : cases_) {
    EXPECT_EQ(tokenizer_->Decode(Ids(c["ids"]), /*skip_special=*/false),
              c["decoded"].get<std::string>())
        << c["ids"];
    EXPECT_EQ(tokenizer_->Decode(Ids(c["ids"]), /*skip_special=*/true),
              c.contains("decoded_skip") ? c["decoded_skip"] : c["decoded"])
        << c["ids"];
  }
}

TEST_P(SharedTokenizerTest, DecodesTokenByTokenAsAtOnce) {
  for (const json& c : cases_) {
    auto detokenizer = *Detokenizer::Create(tokenizer_.get(), {.skip_special = false});
    std::string text;
    for (const int32_t id : Ids(c["ids"])) detokenizer->Push(id, &text);
    detokenizer->Finish(&text);
    EXPECT_EQ(text, c["decoded"].get<std::string>());
  }
}

TEST_P(SharedTokenizerTest, TokenByTokenEqualsAtOnceOverRandomIds) {
  SplitMix64 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids;
    for (uint64_t n = random.Below(30); n > 0; --n) {
      // Half of the ids are low, where the bytes and the special tokens are. Two ids lie beyond the
      // vocabulary.
      ids.push_back(static_cast<int32_t>(
          random.Below(random.Below(2) == 0 ? 400 : tokenizer_->vocab_size() + 2)));
    }

    const bool skip = random.Below(2) == 0;
    auto detokenizer = *Detokenizer::Create(tokenizer_.get(), {.skip_special = skip});
    std::string text;
    for (const int32_t id : ids) detokenizer->Push(id, &text);
    detokenizer->Finish(&text);

    ASSERT_EQ(text, tokenizer_->Decode(ids, skip));
    ASSERT_TRUE(IsUtf8(text));
  }
}

TEST_P(SharedTokenizerTest, TheBytesOfTokensJoinToTheTextThatTheyAddBehindAnotherToken) {
  const int32_t first = tokenizer_->Encode("a", {.add_special = false})->front();
  for (const json& c : cases_) {
    if (c["text"].is_null()) continue;
    auto detokenizer = *Detokenizer::Create(tokenizer_.get(), {.skip_special = false});
    detokenizer->Prime({first});
    std::string text, bytes;

    for (const int32_t id : Ids(c["ids"])) {
      detokenizer->Push(id, &text);
      bytes += tokenizer_->TokenBytes(id);
    }

    detokenizer->Finish(&text);
    EXPECT_EQ(bytes, text) << c["ids"];
  }
}

TEST_P(SharedTokenizerTest, OffsetsAreOfTheSameIdsInOrderAndBetweenCharacters) {
  // NFC may join characters and change their order.
  const bool composes = std::string(GetParam()) == "qwen3";
  for (const json& c : cases_) {
    if (c["text"].is_null()) continue;
    const std::string text = c["text"];
    const auto encoding = tokenizer_->EncodeWithOffsets(text, {.add_special = false});
    ASSERT_TRUE(encoding.ok()) << encoding.status();

    EXPECT_EQ(encoding->ids, Ids(c["ids"]));
    ASSERT_EQ(encoding->offsets.size(), encoding->ids.size());

    size_t last = 0;
    for (const Span& span : encoding->offsets) {
      ASSERT_LE(span.begin, span.end);
      ASSERT_LE(span.end, text.size());
      if (!composes) ASSERT_GE(span.end, last);
      last = span.end;
      for (const size_t at : {span.begin, span.end})
        ASSERT_TRUE(at == text.size() || (static_cast<uint8_t>(text[at]) & 0xC0) != 0x80);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SharedTokenizerTest, testing::ValuesIn(shared_tokenizers::kNames),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' || c == '.' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace sluice
