#include "common/prompt/prompt.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "common/checkpoint/model_dir.h"
#include "common/testing/data.h"
#include "common/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Fields = std::map<std::string, std::string>;

constexpr char kDigits[] = SLUICE_SOURCE_DIR "/configs/examples/digits";

std::unique_ptr<PromptRenderer> Load(const std::string& model, const std::string& format,
                                     const std::string& chat_template = "model") {
  auto renderer =
      PromptRenderer::Load(*ReadModelDir(model), chat_template,
                           {{"data", format, {{"prompt", "question"}, {"answer", "answer"}}}});
  EXPECT_TRUE(renderer.ok()) << renderer.status();
  return *std::move(renderer);
}

TEST(PromptTest, AFormatIsFilledFromTheRow) {
  EXPECT_EQ(*FillFormat("{question}\n", Fields{{"question", "1 + 1?"}}), "1 + 1?\n");
  EXPECT_EQ(*FillFormat("{{{a}}} {b}", Fields{{"a", "x"}, {"b", "{c}"}}), "{x} {c}")
      << "values are not read again";
  EXPECT_EQ(*FillFormat("", Fields{}), "");
  EXPECT_THAT(FillFormat("{q}", Fields{{"a", ""}, {"b", ""}}).status().message(),
              HasSubstr("no field q; it has a, b"));
  EXPECT_THAT(FillFormat("ab {q", Fields{}).status().message(),
              HasSubstr("the brace at 3 is not closed"));
}

TEST(PromptTest, WithoutATemplateTheFormatIsEncodedWithTheLeadingToken) {
  const auto renderer = Load(kDigits, "{question}=");
  const absl::StatusOr<RenderedPrompt> prompt =
      renderer->Render("data", R"({"answer": "12", "prompt": "4821"})");
  ASSERT_TRUE(prompt.ok()) << prompt.status();

  ASSERT_EQ(prompt->tokens.size(), 6u);
  EXPECT_EQ(prompt->tokens[0], 1) << "<s>";
  EXPECT_EQ(prompt->messages, R"([{"role":"user","content":"4821="}])");
}

TEST(PromptTest, AFieldMayBeNamedAsInTheFileOrAsMapped) {
  EXPECT_EQ(Load(kDigits, "{question}=")->Render("data", R"({"prompt": "77"})")->tokens,
            Load(kDigits, "{prompt}=")->Render("data", R"({"prompt": "77"})")->tokens);
}

TEST(PromptTest, AnAnswerFollowsItsPromptInTheMessages) {
  const std::string messages =
      PromptRenderer::WithAnswer(R"([{"role":"user","content":"a]"}])", "say \"hi\"\n");
  const auto parsed = nlohmann::json::parse(messages);
  ASSERT_EQ(parsed.size(), 2u);

  EXPECT_EQ(parsed[0]["content"], "a]");
  EXPECT_EQ(parsed[1]["role"], "assistant");
  EXPECT_EQ(parsed[1]["content"], "say \"hi\"\n");
  EXPECT_EQ(nlohmann::json::parse(PromptRenderer::WithAnswer("[]", "x")).size(), 1u);
}

TEST(PromptTest, AnAnswersTextLeavesTheEndTokenOut) {
  const auto renderer = Load(kDigits, "{prompt}");
  std::vector<int32_t> tokens = *renderer->tokenizer().Encode("1284", {.add_special = false});
  tokens.push_back(2);
  EXPECT_EQ(renderer->AnswerText(tokens), "1284");
}

// The text up to the end of each token, with U+FFFD for a character that is not whole there.
std::vector<std::string> TextsUpTo(const PromptRenderer& renderer,
                                   const std::vector<int32_t>& tokens) {
  std::vector<std::string> texts;
  const std::string text = renderer.AnswerText(tokens);
  for (const uint32_t end : renderer.AnswerEnds(tokens)) texts.push_back(text.substr(0, end));
  return texts;
}

TEST(PromptTest, EachTokenOfAnAnswerSaysWhereItsTextEnds) {
  const auto renderer = Load(kDigits, "{prompt}");
  std::vector<int32_t> tokens = *renderer->tokenizer().Encode("1284", {.add_special = false});
  ASSERT_EQ(tokens.size(), 4u);
  tokens.push_back(2);
  EXPECT_THAT(TextsUpTo(*renderer, tokens), ElementsAre("1", "12", "128", "1284", "1284"));
  EXPECT_TRUE(renderer->AnswerEnds({}).empty());
}

TEST(PromptTest, ACharacterOfSeveralTokensEndsWithItsLastOne) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny");
  const auto renderer = Load(testing_data::Path("models/qwen3-tiny"), "{question}\n");
  // A token for each byte: "e", the two bytes of U+00E9, the four of U+1F600, "!".
  std::vector<int32_t> tokens;
  for (const char* byte : {"e", "\xc3", "\xa9", "\xf0", "\x9f", "\x98", "\x80", "!"}) {
    for (int32_t id = 0; id < renderer->tokenizer().vocab_size(); ++id) {
      if (renderer->tokenizer().TokenBytes(id) != byte) continue;
      tokens.push_back(id);
      break;
    }
  }
  ASSERT_EQ(tokens.size(), 8u);
  EXPECT_EQ(renderer->AnswerText(tokens), "e\u00e9\U0001f600!");
  EXPECT_THAT(renderer->AnswerEnds(tokens), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  // Without its last byte, the character becomes U+FFFD.
  tokens.erase(tokens.begin() + 6);
  const std::string text = renderer->AnswerText(tokens);
  EXPECT_EQ(text, "e\u00e9\ufffd!");
  const std::vector<uint32_t> ends = renderer->AnswerEnds(tokens);
  EXPECT_EQ(ends[2], 3u);
  EXPECT_EQ(ends.back(), text.size());
}

// Of random tokens and of random text: up to a token after which the text is whole, the text is
// that of these tokens alone.
TEST(PromptTest, TheTextUpToATokenIsThatOfTheTokensUpToIt) {
  for (const char* model : {"models/qwen3-tiny", "models/llama3-tiny", "models/stories260k"}) {
    SLUICE_NEEDS_TEST_DATA(model);
    const auto renderer = Load(testing_data::Path(model), "{question}\n");
    const int32_t vocab = renderer->tokenizer().vocab_size();
    for (uint64_t seed = 0; seed < 50; ++seed) {
      SplitMix64 random(seed);
      constexpr const char* kCharacters[] = {"a", " ", "\n", "\u00e9", "\u6f22", "\U0001f600"};
      std::string written;
      std::vector<int32_t> tokens;
      for (int i = 0; i < 40; ++i) {
        written += kCharacters[random.Below(std::size(kCharacters))];
        tokens.push_back(static_cast<int32_t>(random.Below(static_cast<uint64_t>(vocab))));
      }
      if (seed % 2 == 0) tokens = *renderer->tokenizer().Encode(written, {.add_special = false});
      const std::string text = renderer->AnswerText(tokens);
      const std::vector<uint32_t> ends = renderer->AnswerEnds(tokens);
      ASSERT_EQ(ends.size(), tokens.size());
      EXPECT_TRUE(std::is_sorted(ends.begin(), ends.end())) << model << " seed " << seed;
      EXPECT_EQ(ends.back(), text.size());
      int checked = 0;
      for (size_t i = 0; i < tokens.size(); ++i) {
        const std::string alone = renderer->AnswerText(absl::MakeConstSpan(tokens).first(i + 1));
        if (absl::StrContains(alone, "\ufffd") || !absl::StartsWith(text, alone)) continue;
        EXPECT_EQ(text.substr(0, ends[i]), alone) << model << " seed " << seed << " token " << i;
        ++checked;
      }
      if (seed % 2 == 0) EXPECT_GT(checked, 5) << model << " seed " << seed;
    }
  }
}

TEST(PromptTest, ATemplateMakesOneUserMessageOfAText) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny");
  const auto renderer = Load(testing_data::Path("models/qwen3-tiny"), "{question}\n");
  const absl::StatusOr<RenderedPrompt> prompt = renderer->Render("data", R"({"prompt": "Hi?"})");
  ASSERT_TRUE(prompt.ok()) << prompt.status();

  EXPECT_EQ(renderer->tokenizer().Decode(prompt->tokens, false),
            "<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(prompt->tokens.front(), *renderer->tokenizer().TokenId("<|im_start|>"));
  EXPECT_EQ(prompt->messages, R"([{"role":"user","content":"Hi?"}])");

  const auto listed = renderer->Render(
      "data", R"({"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", )"
              R"("content": "Hi?"}]})");
  ASSERT_TRUE(listed.ok());

  EXPECT_THAT(renderer->tokenizer().Decode(listed->tokens, false),
              HasSubstr("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user"));
}

TEST(PromptTest, ATemplateCanBeLeftOut) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny");
  const auto renderer = Load(testing_data::Path("models/qwen3-tiny"), "Q: {question}\n", "none");
  EXPECT_EQ(
      renderer->tokenizer().Decode(renderer->Render("data", R"({"prompt": "Hi?"})")->tokens, false),
      "Q: Hi?\n");
}

TEST(PromptTest, RowsThatDoNotFitSayWhatIsWrong) {
  const auto renderer = Load(kDigits, "{question}=");
  EXPECT_THAT(renderer->Render("other", "{}").status().message(),
              HasSubstr("no source named other"));
  EXPECT_THAT(renderer->Render("data", "[1]").status().message(), HasSubstr("not a JSON object"));
  EXPECT_THAT(renderer->Render("data", R"({"answer": "1"})").status().message(),
              HasSubstr("no field question"));

  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny");
  const auto chat = Load(testing_data::Path("models/qwen3-tiny"), "");
  EXPECT_THAT(chat->Render("data", R"({"prompt": 5})").status().message(),
              HasSubstr("wanted: a text or a list of messages"));
  EXPECT_THAT(chat->Render("data", R"({"prompt": [{"role": "user"}]})").status().message(),
              HasSubstr("an object with role and content"));
}

}  // namespace
}  // namespace sluice
