#include "common/prompt/prompt.h"

#include "absl/strings/str_cat.h"
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
