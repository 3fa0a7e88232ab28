#include "common/tokenizer/detokenizer.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "common/base/utf8.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using nlohmann::json;

// Returns a tokenizer whose vocabulary is each single byte, spelled by `spell`, then `words` and a
// special token.
std::unique_ptr<Tokenizer> MakeTokenizer(const json& decoder,
                                         const std::function<std::string(int)>& spell,
                                         const std::vector<std::string>& words) {
  json vocab = json::object();
  int id = 0;
  for (int b = 0; b < 256; ++b) vocab[spell(b)] = id++;
  for (const std::string& word : words) vocab[word] = id++;
  json root = {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}},
               {"decoder", decoder}};
  root["added_tokens"] = json::array({{{"id", id},
                                       {"content", "<|end|>"},
                                       {"special", true},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", false}}});
  auto tokenizer = Tokenizer::Parse(root.dump());

  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::unique_ptr<Tokenizer> ByteLevel() {
  const auto spell = [](int b) {
    return ByteLevelAlphabet::Get().Spell(std::string(1, static_cast<char>(b)));
  };
  return MakeTokenizer({{"type", "ByteLevel"}}, spell,
                       {ByteLevelAlphabet::Get().Spell(" stop"),
                        ByteLevelAlphabet::Get().Spell("\xE2\x82"), "no\tspelling"});
}

std::unique_ptr<Tokenizer> Fallback(int stop) {
  const json chain = {{"type", "Sequence"},
                      {"decoders",
                       {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                        {{"type", "ByteFallback"}},
                        {{"type", "Fuse"}},
                        {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", stop}}}}};

  return MakeTokenizer(
      chain, [](int b) { return absl::StrCat("<0x", absl::Hex(b, absl::kZeroPad2), ">"); },
      {"▁", "▁▁", "▁stop", "stop", "é", "▁a▁"});
}

std::vector<int32_t> RandomIds(const Tokenizer& tokenizer, SplitMix64& random) {
  std::vector<int32_t> ids;
  for (uint64_t n = random.Below(24); n > 0; --n) {
    // Two thirds are bytes of a few characters, so that whole characters come up. The others are
    // words, the special token and two ids beyond the vocabulary.
    const bool text = random.Below(3) == 0;
    ids.push_back(
        static_cast<int32_t>(text ? 256 + random.Below(tokenizer.vocab_size() - 254)
                                  : "\xE2\x82\xAC\xC3\xA9\xF0\x9F\x98 s"[random.Below(10)] & 0xFF));
  }

  return ids;
}

void ExpectEqualToDecode(const Tokenizer& tokenizer, uint64_t seed) {
  SplitMix64 random(seed);
  for (int round = 0; round < 4000; ++round) {
    const std::vector<int32_t> ids = RandomIds(tokenizer, random);
    const bool skip = random.Below(2) == 0;
    auto detokenizer = *Detokenizer::Create(&tokenizer, {.skip_special = skip});
    std::string text;

    for (const int32_t id : ids) {
      EXPECT_FALSE(detokenizer->Push(id, &text));
      ASSERT_TRUE(IsUtf8(text));
    }

    detokenizer->Finish(&text);
    ASSERT_EQ(text, tokenizer.Decode(ids, skip));
  }
}

TEST(DetokenizerTest, GivesWhatDecodingTheWholeListGivesForByteLevelTokens) {
  ExpectEqualToDecode(*ByteLevel(), 1);
}
TEST(DetokenizerTest, GivesWhatDecodingTheWholeListGivesForByteFallback) {
  ExpectEqualToDecode(*Fallback(0), 2);
}
TEST(DetokenizerTest, GivesWhatDecodingTheWholeListGivesWhereTheEndIsStripped) {
  ExpectEqualToDecode(*Fallback(2), 3);
}

TEST(DetokenizerTest, WithStopStringsTheTextIsThatOfTheWholeListUpToTheFirstMatch) {
  for (const auto& tokenizer : {ByteLevel(), Fallback(0), Fallback(1)}) {
    SplitMix64 random(4);
    for (int round = 0; round < 4000; ++round) {
      const std::vector<int32_t> ids = RandomIds(*tokenizer, random);
      const std::vector<std::string> all = {"stop",          "€s", " ", "sts", "é", "é€",
                                            "\xEF\xBF\xBDs", "ss"};
      std::vector<std::string> stops;
      for (const std::string& stop : all) {
        if (random.Below(3) == 0) stops.push_back(stop);
      }
      const std::string whole = tokenizer->Decode(ids, true);

      // The match that ends first counts, and of those that end together the longest.
      size_t end = std::string::npos, begin = whole.size();
      for (const std::string& stop : stops) {
        const size_t at = whole.find(stop);
        if (at == std::string::npos || at + stop.size() > end ||
            (at + stop.size() == end && at > begin))
          continue;
        end = at + stop.size();
        begin = at;
      }

      auto detokenizer = *Detokenizer::Create(tokenizer.get(), {.stops = stops});
      std::string text;
      bool stopped = false;
      for (const int32_t id : ids) stopped = detokenizer->Push(id, &text) || stopped;
      stopped = detokenizer->Finish(&text) || stopped;

      ASSERT_EQ(text, whole.substr(0, begin));
      ASSERT_EQ(stopped, end != std::string::npos);

      if (stopped) {
        ASSERT_EQ(stops[detokenizer->matched_stop()], whole.substr(begin, end - begin));
      }
    }
  }
}

TEST(DetokenizerTest, HoldsBackTheBytesOfACharacterAndTheStartOfAStopString) {
  const auto tokenizer = ByteLevel();
  auto detokenizer = *Detokenizer::Create(tokenizer.get(), {.stops = {"abc"}});
  const auto push = [&](char c) {
    std::string text;
    detokenizer->Push(static_cast<uint8_t>(c), &text);
    return text;
  };

  EXPECT_EQ(push('\xE2'), "");
  EXPECT_EQ(push('\x82'), "");
  EXPECT_EQ(push('\xAC'), "€");
  EXPECT_EQ(push('a'), "");
  EXPECT_EQ(push('b'), "");
  EXPECT_EQ(push('a'), "ab");
  EXPECT_EQ(push('x'), "ax");
  EXPECT_EQ(push('\xC3'), "");
  EXPECT_EQ(push('y'), "\xEF\xBF\xBDy");
}

TEST(DetokenizerTest, AStopStringOverThreeTokensCutsTheTextAndWhatFollowsIsIgnored) {
  const auto tokenizer = ByteLevel();
  auto detokenizer = *Detokenizer::Create(tokenizer.get(), {.stops = {"xyz"}});
  std::string text;
  for (const char c : std::string("1xy")) EXPECT_FALSE(detokenizer->Push(c, &text));

  EXPECT_TRUE(detokenizer->Push('z', &text));
  EXPECT_TRUE(detokenizer->Push('q', &text));
  EXPECT_TRUE(detokenizer->Finish(&text));
  EXPECT_EQ(text, "1");
  EXPECT_EQ(detokenizer->matched_stop(), 0);
}

TEST(DetokenizerTest, TextThatContinuesAPromptKeepsItsSpaceAndItsCharacter) {
  const auto llama = Fallback(0);
  const int32_t space_stop = 256 + 2;
  auto detokenizer = *Detokenizer::Create(llama.get(), {});
  std::string text;
  detokenizer->Prime({space_stop});
  detokenizer->Push(space_stop, &text);
  detokenizer->Finish(&text);

  EXPECT_EQ(text, " stop");

  const auto bytes = ByteLevel();
  detokenizer = *Detokenizer::Create(bytes.get(), {.stops = {"é!"}});
  text.clear();
  detokenizer->Prime({'x', 0xC3});

  EXPECT_FALSE(detokenizer->Push(0xA9, &text));
  EXPECT_FALSE(detokenizer->Finish(&text));
  EXPECT_EQ(text, "é");
}

TEST(StopMatcherTest, RefusesStringsThatAreEmptyLongOrTooMany) {
  for (const std::vector<std::string>& stops : {std::vector<std::string>{""},
                                                {std::string(1025, 'a')},
                                                std::vector<std::string>(17, "a"),
                                                {"\xFF"}}) {
    EXPECT_EQ(StopMatcher::Create(stops).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace sluice
