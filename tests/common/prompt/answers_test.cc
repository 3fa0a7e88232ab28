#include "common/prompt/answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string ErrorOf(absl::string_view kind, const nlohmann::json& row) {
  return std::string(AnswersOf(kind, row).status().message());
}

TEST(AnswersTest, ARowOfSftHasOneAnswer) {
  EXPECT_THAT(*AnswersOf("sft", {{"answer", "four"}}), ElementsAre("four"));
  EXPECT_THAT(*AnswersOf("sft", {{"answer", 4}}), ElementsAre("4"));
}

TEST(AnswersTest, ARowOfDpoHasTheChosenAnswerFirst) {
  EXPECT_THAT(*AnswersOf("dpo", {{"rejected", "5"}, {"chosen", "4"}}), ElementsAre("4", "5"));
}

TEST(AnswersTest, AnAnswerInMessagesIsTheLastOneOfTheAssistant) {
  const nlohmann::json question = {{"role", "user"}, {"content", "2 + 2"}};
  const nlohmann::json right = {{"role", "assistant"}, {"content", "4"}};
  const nlohmann::json wrong = {{"role", "assistant"}, {"content", "5"}};
  EXPECT_THAT(*AnswersOf("dpo", {{"chosen", {question, right}}, {"rejected", {question, wrong}}}),
              ElementsAre("4", "5"));
  EXPECT_THAT(ErrorOf("sft", {{"answer", nlohmann::json::array({question})}}),
              HasSubstr("`answer` is a list, but its last message is not the assistant's"));
  EXPECT_THAT(ErrorOf("sft", {{"answer", nlohmann::json::array()}}), HasSubstr("no message"));
  EXPECT_THAT(ErrorOf("sft", {{"answer", {{{"role", "assistant"}, {"content", nullptr}}}}}),
              HasSubstr("no text as content"));
}

TEST(AnswersTest, ARowWithoutTheAnswersOfItsKindIsRefused) {
  EXPECT_THAT(
      ErrorOf("dpo", {{"answer", "4"}}),
      HasSubstr("no field `chosen`; name the column that holds it: data.train.N.fields.chosen"));
  EXPECT_THAT(ErrorOf("dpo", {{"chosen", "4"}}), HasSubstr("no field `rejected`"));
  EXPECT_THAT(ErrorOf("dpo", {{"chosen", "4"}, {"rejected", ""}}),
              HasSubstr("field `rejected` is empty"));
  EXPECT_THAT(ErrorOf("dpo", {{"chosen", "4"}, {"rejected", "4"}}), HasSubstr("are the same"));
  EXPECT_THAT(ErrorOf("dpo", {{"chosen", true}, {"rejected", "4"}}), HasSubstr("field `chosen`"));
  EXPECT_THAT(ErrorOf("sft", nlohmann::json::object()), HasSubstr("no field `answer`"));
}

}  // namespace
}  // namespace sluice
