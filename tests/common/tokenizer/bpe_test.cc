#include "common/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "common/base/splitmix.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using Json = nlohmann::json;

struct Token {
  int32_t id;
  uint32_t bytes;
  bool operator==(const Token&) const = default;
};

std::vector<Token> Encode(const Bpe& bpe, absl::string_view word) {
  Bpe::Symbols symbols;
  bpe.Encode(word, &symbols);
  std::vector<Token> tokens;
  for (const Bpe::Symbol& symbol : symbols) tokens.push_back({symbol.id, symbol.bytes});
  return tokens;
}

const std::vector<std::string>& Alphabet() {
  static const std::vector<std::string> characters = {"a",
                                                      "b",
                                                      "(",
                                                      "<",
                                                      "0",
                                                      "x",
                                                      "A",
                                                      ">",
                                                      "\n",
                                                      "\xC3\xA9",
                                                      "\xE2\x96\x81",
                                                      "\xE2\x80\x94",
                                                      "\xF0\x9F\x98\x80"};

  return characters;
}

std::string RandomWord(SplitMix64* random) {
  std::string word;
  for (uint64_t n = 1 + random->Below(60); n > 0; --n)
    word += Alphabet()[random->Below(Alphabet().size())];
  return word;
}

// Returns a random model. Characters may be missing, the bytes and the unknown token may take part
// in merges, and merges may join any two tokens.
Json RandomModel(SplitMix64* random) {
  std::vector<std::string> tokens;
  std::set<std::string> known;
  const auto add = [&](const std::string& token) {
    if (known.insert(token).second) tokens.push_back(token);
  };
  Json model = {{"type", "BPE"},
                {"fuse_unk", random->Below(2) == 0},
                {"byte_fallback", random->Below(2) == 0},
                {"ignore_merges", random->Below(8) == 0}};
  if (random->Below(4) != 0) add("<unk>"), model["unk_token"] = "<unk>";

  if (random->Below(3) != 0) {
    const bool all = random->Below(4) != 0;
    for (int b = 0; b < 256; ++b) {
      char token[8];
      std::snprintf(token, sizeof(token), "<0x%02X>", b);
      if (all || random->Below(2) == 0) add(token);
    }
  }

  // Tokens from this id on take part in merges.
  const size_t special = random->Below(4) == 0 ? 0 : tokens.size();
  for (const std::string& character : Alphabet()) {
    if (random->Below(5) != 0) add(character);
  }
  Json merges = Json::array();

  for (uint64_t n = random->Below(40); n > 0 && tokens.size() > special; --n) {
    const std::string left = tokens[special + random->Below(tokens.size() - special)],
                      right = tokens[special + random->Below(tokens.size() - special)];
    add(left + right);
    merges.push_back({left, right});
  }

  Json vocab = Json::object();
  for (size_t id = 0; id < tokens.size(); ++id) vocab[tokens[id]] = id;
  model["vocab"] = std::move(vocab), model["merges"] = std::move(merges);
  return model;
}

Bpe Make(const Json& model) {
  absl::StatusOr<TokenizerFile> file = TokenizerFile::Parse(Json{{"model", model}}.dump());
  EXPECT_EQ(file.status(), absl::OkStatus());
  const std::unique_ptr<Json> rest = std::move(file->rest);
  const Component root(*rest, "");
  absl::StatusOr<Bpe> bpe =
      Bpe::Create(*root.Object("model"), *std::move(file), /*byte_level=*/false);
  EXPECT_EQ(bpe.status(), absl::OkStatus());
  return *std::move(bpe);
}

TEST(BpeTest, AWordInPartsGivesTheTokensOfTheWhole) {
  int cuts = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SplitMix64 random(seed);
    const Json model = RandomModel(&random);
    const Bpe bpe = Make(model);
    for (int i = 0; i < 20; ++i) {
      const std::string word = RandomWord(&random);
      std::vector<Token> parts;
      for (absl::string_view rest = word; !rest.empty();) {
        const size_t cut = bpe.CutAt(rest);
        ASSERT_GT(cut, 0u);
        for (const Token& token : Encode(bpe, rest.substr(0, cut))) parts.push_back(token);
        rest.remove_prefix(cut);
        cuts += !rest.empty();
      }

      ASSERT_EQ(parts, Encode(bpe, word)) << "seed " << seed << ": " << Json(word).dump() << "\n"
                                          << model.dump();
    }
  }

  EXPECT_GT(cuts, 10'000);
}

TEST(BpeTest, SentencePiecesWordsAreCutWhereNoMergeReachesOver) {
  Json vocab = Json::object();
  for (const char* const token : {"<unk>", "\xE2\x96\x81", "a", "b", "(", ")", "ab",
                                  "\xE2\x96\x81"
                                  "ab",
                                  "()", "\xE2\x96\x81\xE2\x96\x81"})
    vocab[token] = vocab.size();
  const Bpe bpe =
      Make({{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"vocab", vocab},
            {"merges", {"a b", "\xE2\x96\x81 ab", "( )", "\xE2\x96\x81 \xE2\x96\x81"}}});
  const std::string word =
      "\xE2\x96\x81\xE2\x96\x81"
      "ab()\xE2\x96\x81"
      "ab";

  EXPECT_EQ(bpe.CutAt(word), 8u) << "U+2581 twice and ab; a bracket after b is in no merge";
  EXPECT_EQ(bpe.CutAt(word.substr(8)), 2u) << "()";
  EXPECT_EQ(bpe.CutAt(word.substr(10)), 5u) << "the last";
  EXPECT_EQ(bpe.CutAt("(z"), 2u) << "z is unknown, and goes with what is before it";
}

}  // namespace
}  // namespace sluice
