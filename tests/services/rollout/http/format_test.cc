// How tokens and their texts are written into answers. Each token of the tokenizer is one byte.
#include "services/rollout/http/format.h"

#include <filesystem>

#include "common/base/file.h"
#include "common/testing/data.h"
#include "common/tokenizer/byte_level.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/services/rollout/http/fake_model.h"

namespace sluice::rollout::http {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kEnd = 256;  // <|end|>; token b is byte b.

// The directory of the digits model, with the tokenizer of bytes.
std::string ByteModelDir() {
  const std::string dir = testing_data::TempPath("byte_model");
  std::filesystem::remove_all(dir);  // The test before may have left it.
  std::filesystem::copy(FakeModel::kDigits, dir);

  Json vocab = Json::object();
  for (int b = 0; b < 256; ++b)
    vocab[ByteLevelAlphabet::Get().Spell(std::string(1, static_cast<char>(b)))] = b;
  const Json level = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", true},
                      {"use_regex", false}};
  const Json tokenizer = {
      {"version", "1.0"},
      {"added_tokens",
       {{{"id", kEnd},
         {"content", "<|end|>"},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", true}}}},
      {"pre_tokenizer", level},
      {"decoder", level},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};

  SLUICE_CHECK(WriteFileAtomic(dir + "/tokenizer.json", tokenizer.dump()).ok());
  return dir;
}

class FormatTest : public testing::Test {
 protected:
  Prepared Prepare(const Json& more) {
    Json body = {{"model", "m"}, {"logprobs", 2}};
    body.update(more);
    auto request = ParseCompletion(body.dump());
    SLUICE_CHECK_MSG(request.ok(), request.status().ToString());
    auto prepared = http::Prepare(*std::move(request), model_);
    SLUICE_CHECK_MSG(prepared.ok(), prepared.status().ToString());
    return *std::move(prepared);
  }

  Json Logprobs(const Prepared& prepared, const AnswerPart& part) {
    const Format format(prepared, model_.renderer().tokenizer());
    return Json::parse(format.Whole({}, {part}, {}))["choices"][0]["logprobs"];
  }

  FakeModel model_{"m", "none", ByteModelDir()};
};

TEST_F(FormatTest, SpecialTokensOfAnEchoedTextCountInItsOffsets) {
  const Prepared prepared = Prepare({{"prompt",
                                      "<|end|>b\xC3\xA9"
                                      "c"},
                                     {"echo", true}});

  EXPECT_EQ(*prepared.prompts[0].ids, (std::vector<int32_t>{kEnd, 'b', 0xC3, 0xA9, 'c'}));
  EXPECT_EQ(prepared.prompts[0].offsets, (std::vector<uint64_t>{0, 7, 8, 8, 9}))
      << "two bytes of one character stand where it does";
  EXPECT_EQ(prepared.prompts[0].text,
            "<|end|>b\xC3\xA9"
            "c");
}

TEST_F(FormatTest, IdsThatEndInsideACharacterAreEchoedUpToIt) {
  const Prepared prepared = Prepare({{"prompt", {'a', kEnd, 0xC3}}, {"echo", true}});
  EXPECT_EQ(prepared.prompts[0].text, "a") << "the character comes with the answer's first token";
  EXPECT_EQ(prepared.prompts[0].offsets, (std::vector<uint64_t>{0, 1, 1}));

  AnswerPart part{.text =
                      "a\xC3\xA9"
                      "b"};
  for (const int32_t id : *prepared.prompts[0].ids) part.prompt.push_back({.token = id});
  part.tokens = {Sampled(0, 0xA9, "\xC3\xA9"), Sampled(0, 'b', "b")};
  EXPECT_EQ(Logprobs(prepared, part)["text_offset"], (Json{0, 1, 1, 1, 2}));
}

TEST_F(FormatTest, PartsOfCharactersAreToldApartByTheirBytes) {
  const Prepared prepared = Prepare({{"prompt", "a"}});
  TokenEvent event = Sampled(0, 0xC3, "");
  auto details = std::make_shared<TokenDetails>();
  details->top = {{0xC4, -0.1f}, {0xE2, -2.0f}};
  event.details = details;

  const Json logprobs = Logprobs(prepared, {.tokens = {event, Sampled(0, ' ', " ")}});
  EXPECT_EQ(logprobs["tokens"], (Json{"bytes:\\xc3", " "}));
  ASSERT_EQ(logprobs["top_logprobs"][0].size(), 3u)
      << "two, and the token itself: " << logprobs.dump();
  EXPECT_TRUE(logprobs["top_logprobs"][0].contains("bytes:\\xe2"));

  Prepared chat = prepared;
  chat.request.chat = true;
  EXPECT_EQ(Logprobs(chat, {.tokens = {event}})["content"][0]["bytes"], (Json{0xC3}));
}

TEST_F(FormatTest, ASampledSpecialTokenHasANameAndNoBytesAsItPutsNothingIntoTheContent) {
  Prepared chat = Prepare({{"prompt", "a"}});
  chat.request.chat = true;
  TokenEvent likely = Sampled(0, 'b', "b");
  auto details = std::make_shared<TokenDetails>(*likely.details);
  details->top = {{kEnd, -0.1f}, {'b', -2.0f}};
  likely.details = details;

  const Json content = Logprobs(
      chat,
      {.text = "bc", .tokens = {likely, Sampled(0, kEnd, ""), Sampled(0, 'c', "c")}})["content"];

  EXPECT_EQ(content[1]["token"], "<|end|>");
  EXPECT_EQ(content[1]["bytes"], Json::array());
  EXPECT_EQ(content[0]["top_logprobs"][0]["token"], "<|end|>");
  EXPECT_EQ(content[0]["top_logprobs"][0]["bytes"], Json::array());

  std::string joined;
  for (const Json& token : content) {
    for (const Json& byte : token["bytes"]) joined.push_back(static_cast<char>(byte.get<int>()));
  }
  EXPECT_EQ(joined, "bc");
}

}  // namespace
}  // namespace sluice::rollout::http
