// What a plug-in writes is the output of user code: it becomes a score only if it is one.
#include "common/plugins/protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "common/plugins/plugin_calls.h"
#include "common/plugins/plugin_messages.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

std::vector<PluginResult> Results(const std::string& results) {
  const auto answer = ParsePluginAnswer(absl::StrCat("{\"id\": 7, \"results\": ", results, "}"));
  EXPECT_TRUE(answer.ok()) << answer.status();
  if (!answer.ok()) return {{}};
  EXPECT_EQ(answer->id, 7u);
  return answer->results;
}

TEST(PluginProtocolTest, OnlyAFiniteNumberIsAScore) {
  EXPECT_EQ(*Results(R"([{"score": 0.5}])")[0].score, 0.5);
  EXPECT_EQ(*Results(R"([{"score": -3}])")[0].score, -3);
  for (const char* score : {"\"1\"", "true", "[1]", "{\"a\": 1}"}) {
    const PluginResult result = Results(absl::StrCat("[{\"score\": ", score, "}]"))[0];
    EXPECT_FALSE(result.score.has_value()) << score;
    EXPECT_THAT(result.error, HasSubstr("wanted: a finite number")) << score;
    EXPECT_FALSE(result.retryable);
  }
}

TEST(PluginProtocolTest, AResultWithoutScoreAndErrorDoesNotApply) {
  for (const char* result : {"{}", R"({"score": null})", R"({"error": null})"}) {
    const PluginResult read = Results(absl::StrCat("[", result, "]"))[0];
    EXPECT_FALSE(read.score.has_value());
    EXPECT_THAT(read.error, IsEmpty());
  }
}

TEST(PluginProtocolTest, AnErrorIsNeverAScore) {
  const PluginResult result = Results(R"([{"score": 1, "error": "no", "retryable": true}])")[0];
  EXPECT_FALSE(result.score.has_value());
  EXPECT_EQ(result.error, "no");
  EXPECT_TRUE(result.retryable);
  EXPECT_EQ(Results(R"([{"error": ""}])")[0].error, "an error without a text");
  EXPECT_EQ(Results(R"([{"error": {"a": 1}}])")[0].error, "{\"a\":1}");
  EXPECT_THAT(Results("[3]")[0].error, HasSubstr("its result is 3"));
}

TEST(PluginProtocolTest, PartsThatAreNoNumbersAndAnInfoThatIsTooLongAreLeftOut) {
  const PluginResult result =
      Results(absl::StrCat(R"([{"score": 1, "parts": {"a": 2, "b": "x"}, "info": {"c": ")",
                           std::string(5000, 'x'), "\"}}]"))[0];
  EXPECT_EQ(*result.score, 1);
  EXPECT_THAT(result.parts, testing::ElementsAre(testing::Pair("a", 2)));
  EXPECT_THAT(result.info, IsEmpty());
  EXPECT_EQ(Results(R"([{"score": 1, "info": {"c": 1}}])")[0].info, "{\"c\":1}");
}

TEST(PluginProtocolTest, ALineThatIsNoAnswerIsAnErrorThatQuotesIt) {
  const std::pair<std::string, std::string> lines[] = {
      {"hello world", "no JSON object: hello world"},
      {R"({"id": 1, "results": [{"score": NaN}]})", "no JSON object: {\"id\": 1"},
      {R"({"id": 1, "results": [{"score": 1e999}]})", "no JSON object"},
      {"[1]", "no JSON object"},
      {"", "no JSON object"},
      {R"({"results": []})", "without the `id` of a call"},
      {R"({"id": -1, "results": []})", "without the `id` of a call"},
      {R"({"id": "1", "results": []})", "without the `id` of a call"},
      {R"({"id": 1})", "no list `results`"},
      {std::string(100000, '['), "nests more than 64 levels deep"}};
  for (const auto& [line, why] : lines) {
    const auto answer = ParsePluginAnswer(line);
    ASSERT_FALSE(answer.ok()) << line;
    EXPECT_THAT(std::string(answer.status().message()), HasSubstr(why));
  }
}

TEST(PluginProtocolTest, ADescriptionIsCheckedAndAWrongOneNamed) {
  const auto read = ParsePluginDescription(
      R"({"name": "r", "granularity": "group", "max_in_flight": 3,
          "self_test": [{"item": {"completion": "1"}, "score": 1},
                        {"item": [{}, {}], "score": [0, 1]}]})");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->scores_groups);
  EXPECT_EQ(read->max_in_flight, 3u);
  EXPECT_THAT(read->self_test[1].scores, testing::ElementsAre(0, 1));

  const std::pair<std::string, std::string> lines[] = {
      {"{}", "no text `name`"},
      {R"({"name": 1})", "no text `name`"},
      {R"({"name": "r", "granularity": "batch"})", "granularity \"batch\""},
      {R"({"name": "r", "max_in_flight": -1})", "max_in_flight -1"},
      {R"({"name": "r", "max_in_flight": 100000})", "max_in_flight 100000"},
      {R"({"name": "r", "self_test": {}})", "self_test that is no list"},
      {R"({"name": "r", "self_test": [{"item": {}}]})", "wanted: {item, score}"},
      {R"({"name": "r", "self_test": [{"item": [{}], "score": [1, 2]}]})", "for 1 items"}};
  for (const auto& [line, why] : lines) {
    const auto description = ParsePluginDescription(line);
    ASSERT_FALSE(description.ok()) << line;
    EXPECT_THAT(std::string(description.status().message()), HasSubstr(why));
  }
}

TEST(PluginProtocolTest, ASelfTestHasObjectsToScore) {
  for (const char* const item : {"\"2+2\"", "7", "[{}, 7]", "null"}) {
    const auto description = ParsePluginDescription(
        absl::StrCat(R"({"name": "x", "self_test": [{"item": )", item, R"(, "score": [1, 1]}]})"));
    EXPECT_TRUE(absl::IsInvalidArgument(description.status())) << item;
    EXPECT_THAT(std::string(description.status().message()), HasSubstr("wanted: an object"));
  }
}

TEST(PluginProtocolTest, OnlyTrueMeansTruncated) {
  EXPECT_TRUE(PluginItemToProto({{"truncated", true}}).truncated());
  for (const nlohmann::json& other :
       {nlohmann::json(nullptr), nlohmann::json(1), nlohmann::json("yes"), nlohmann::json(false)})
    EXPECT_FALSE(PluginItemToProto({{"truncated", other}}).truncated()) << other;
  EXPECT_FALSE(PluginItemToProto(nlohmann::json::object()).truncated());
}

// The others go on until their instance is ended.
TEST(PluginCallsTest, AnAnswerThatComesTooLateBlamesNobody) {
  PluginCalls calls;
  const uint64_t late = *calls.Begin(1), other = *calls.Begin(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(calls.Await(late, absl::ZeroDuration()).status()));
  EXPECT_EQ(calls.Take({.id = late, .results = {{}}}), absl::OkStatus());
  EXPECT_EQ(calls.Take({.id = other, .results = {{}}}), absl::OkStatus());
  EXPECT_EQ(calls.Await(other, absl::InfiniteDuration()).status(), absl::OkStatus());
}

// Random damage to a right answer gives an error, or the number that stands in it.
TEST(PluginProtocolTest, DamagedAnswersNeverCrashTheParser) {
  const std::string right = R"({"id": 7, "results": [{"score": 0.25, "parts": {"a": 1}}]})";
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    std::string line = right;
    for (int i = 0; i < 3; ++i) line[random() % line.size()] = static_cast<char>(random() % 256);
    const auto answer = ParsePluginAnswer(line);
    if (!answer.ok()) continue;
    for (const PluginResult& result : answer->results) {
      EXPECT_TRUE(std::isfinite(result.score.value_or(0))) << "seed " << seed;
    }
  }
}

TEST(PluginProtocolTest, BytesThatAreNotUtf8AreReplacedInRequests) {
  const std::string line = PluginRequest(1, absl::Seconds(2), {{{"completion", "a\xff"}}});
  EXPECT_EQ(line,
            "{\"deadline_ms\":2000,\"id\":1,\"items\":[{\"completion\":\"a\xef\xbf\xbd\"}]}\n");
}

}  // namespace
}  // namespace sluice
