#include "common/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/base/splitmix.h"
#include "common/base/utf8.h"
#include "common/testing/data.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/tokenizer_file.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using OrderedJson = nlohmann::ordered_json;
using testing::HasSubstr;

std::unique_ptr<Tokenizer> LoadModel(const std::string& name) {
  auto tokenizer = Tokenizer::Load(testing_data::Path("models/" + name + "/tokenizer.json"));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::vector<std::string> Lines(const std::string& path) {
  return absl::StrSplit(*ReadFile(path), '\n', absl::SkipEmpty());
}

TEST(TokenizerTest, EncodesAndDecodesEverySharedStoriesCase) {
  SLUICE_NEEDS_TEST_DATA("models/stories260k");
  const auto tokenizer = LoadModel("stories260k");
  int cases = 0;
  for (const std::string& line :
       Lines(testing_data::Path("models/stories260k/tokenizer_cases.jsonl"))) {
    const OrderedJson row = OrderedJson::parse(line);
    const std::string text = row["text"];
    const auto expected = row.contains("ids") ? row["ids"].get<std::vector<int32_t>>()
                                              : row["input_ids"].get<std::vector<int32_t>>();
    const auto ids = tokenizer->Encode(text, {});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, expected) << text;
    EXPECT_EQ(tokenizer->Decode(*ids, /*skip_special=*/true), text);
    ++cases;
  }

  EXPECT_EQ(cases, 200);
}

TEST(TokenizerTest, EncodesEveryStoryPrompt) {
  SLUICE_NEEDS_TEST_DATA("models/stories260k");
  const auto tokenizer = LoadModel("stories260k");
  for (const std::string& line : Lines(testing_data::Path("models/stories260k/prompts.jsonl"))) {
    const OrderedJson row = OrderedJson::parse(line);
    EXPECT_EQ(*tokenizer->Encode(row["prompt"].get<std::string>(), {}),
              row["input_ids"].get<std::vector<int32_t>>());
  }
}

TEST(TokenizerTest, ByteLevelTextRoundTrips) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny");
  const auto tokenizer = LoadModel("qwen3-tiny");
  for (const std::string& line : Lines(testing_data::Path("gsm8k/test.jsonl"))) {
    const std::string text = OrderedJson::parse(line)["question"];
    EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode(text, {}), false), text);
  }

  const std::string odd = "\tcafé \xF0\x9F\x98\x80\r\n  's 1234 日本\xC2\x85";
  EXPECT_EQ(tokenizer->Decode(*tokenizer->Encode(odd, {}), false), odd);
}

TEST(TokenizerTest, SpecialTokensInTheTextBecomeTheirIdsOnlyWhenAsked) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny");
  const auto tokenizer = LoadModel("qwen3-tiny");
  const std::string text = "<|im_start|>user\nhi<|im_end|>";
  const auto parsed = *tokenizer->Encode(text, {});

  EXPECT_EQ(parsed.front(), 382);
  EXPECT_EQ(parsed.back(), 383);

  const auto plain = *tokenizer->Encode(text, {.parse_special = false});
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 382), 0);
  EXPECT_EQ(tokenizer->Decode(plain, true), text);
  EXPECT_EQ(tokenizer->Decode(parsed, true), "user\nhi");
}

TEST(TokenizerTest, AComponentItDoesNotHaveIsRefusedByName) {
  const auto refused = [](const std::string& extra) {
    return Tokenizer::Parse(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, )" +
                            extra + "}")
        .status();
  };

  EXPECT_EQ(refused(R"("normalizer": {"type": "StripAccents"})").message(),
            "normalizer: the normalizer \"StripAccents\" is not supported");
  EXPECT_EQ(refused(R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", )"
                    R"("individual_digits": true}, {"type": "Whitespace"}]})")
                .message(),
            "pre_tokenizer.pretokenizers[1]: the pre-tokenizer \"Whitespace\" is not supported");
  EXPECT_THAT(std::string(refused(R"("decoder": {"type": "WordPiece"})").message()),
              HasSubstr("WordPiece"));
  EXPECT_THAT(std::string(refused(R"("post_processor": {"type": "BertProcessing"})").message()),
              HasSubstr("BertProcessing"));
  EXPECT_EQ(refused(R"("decoder": {"type": "Fuse", "extra": 1})").message(),
            "decoder.extra = 1: this key is not supported here");
  EXPECT_EQ(Tokenizer::Parse(R"({"model": {"type": "Unigram"}})").status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(TokenizerTest, MalformedFilesAreRefused) {
  for (const char* const json :
       {"", "[]", "{", R"({"model": 3})", R"({"model": {"vocab": {"a": -1}, "merges": []}})",
        R"({"model": {"vocab": {"a": 0}, "merges": ["a b"]}})",
        R"({"model": {"vocab": {"a": "x"}, "merges": []}})"}) {
    EXPECT_EQ(Tokenizer::Parse(json).status().code(), absl::StatusCode::kInvalidArgument) << json;
  }
}

TEST(TokenizerTest, AnErrorNamesItsFileOnce) {
  const std::string path = testing_data::TempPath("tokenizer.json");
  ASSERT_TRUE(WriteFileAtomic(path, R"({"model": {"type": "Unigram"}})").ok());
  EXPECT_EQ(Tokenizer::Load(path).status().message(),
            path + ": model: the model \"Unigram\" is not supported");
}

Bpe MakeBpe(const OrderedJson& model) {
  auto file = *TokenizerFile::Parse(OrderedJson{{"model", model}}.dump());
  const nlohmann::json rest = (*file.rest)["model"];
  return *Bpe::Create(Component(rest, "model"), std::move(file), /*byte_level=*/false);
}

// Compares Encode with a slow reference that merges the best adjacent pair of the whole list, over
// and over.
TEST(BpeTest, EqualsRepeatedMergingOfTheBestPairOverRandomWords) {
  const OrderedJson model = OrderedJson::parse(
      R"({"type": "BPE", )"
      R"("vocab": {"a":0,"b":1,"c":2,"ab":3,"bc":4,"abc":5,"aa":6,"aab":7,"cab":8,"abab":9},
    "merges": [["a","b"],["b","c"],["ab","c"],["a","a"],["aa","b"],["c","ab"],["ab","ab"]]})");
  const Bpe bpe = MakeBpe(model);

  const auto slow = [&](const std::string& word) {
    std::vector<std::string> symbols;
    for (const char c : word) symbols.push_back(std::string(1, c));
    while (true) {
      size_t best_rank = 1000, best = 0;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        for (size_t rank = 0; rank < model["merges"].size(); ++rank) {
          if (model["merges"][rank][0] == symbols[i] &&
              model["merges"][rank][1] == symbols[i + 1] && rank < best_rank)
            best_rank = rank, best = i;
        }
      }

      if (best_rank == 1000) break;
      symbols[best] += symbols[best + 1];
      symbols.erase(symbols.begin() + best + 1);
    }
    std::vector<int32_t> ids;
    for (const std::string& s : symbols) ids.push_back(*bpe.Id(s));
    return ids;
  };

  SplitMix64 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::string word;
    for (uint64_t n = random.Below(i % 10 == 0 ? 90 : 14); n > 0; --n)
      word.push_back("abc"[random.Below(3)]);

    Bpe::Symbols symbols;
    bpe.Encode(word, &symbols);
    std::vector<int32_t> ids;
    for (const Bpe::Symbol& symbol : symbols) ids.push_back(symbol.id);
    EXPECT_EQ(ids, slow(word)) << word;
  }
}

TEST(BpeTest, ALongWordOfOneCharacterEndsSoon) {
  const OrderedJson model = OrderedJson::parse(
      R"({"type": "BPE", "vocab": {"a":0,"aa":1,"aaaa":2}, "merges": [["a","a"],["aa","aa"]]})");
  Bpe::Symbols symbols;
  MakeBpe(model).Encode(std::string(1 << 20, 'a'), &symbols);
  EXPECT_EQ(symbols.size(), (1u << 20) / 4);
}

TEST(Utf8Test, BrokenPartsBecomeOneReplacementEach) {
  EXPECT_EQ(Utf8Lossy("a\xE2\x82z\xFF"), "a\xEF\xBF\xBDz\xEF\xBF\xBD");
  EXPECT_EQ(Utf8Lossy("\xF0\x9F\x98"), "\xEF\xBF\xBD");
  EXPECT_EQ(Utf8Lossy("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

}  // namespace
}  // namespace sluice
