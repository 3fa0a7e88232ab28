#include "services/rollout/http/request.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "services/rollout/http/error.h"

namespace sluice::rollout::http {
namespace {

using Json = nlohmann::ordered_json;

Json Completion(Json more = Json::object()) {
  Json body = {{"model", "m"}, {"prompt", "12="}};
  body.update(more);
  return body;
}

Json Chat(Json more = Json::object()) {
  Json body = {{"model", "m"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  body.update(more);
  return body;
}

ApiError CompletionError(const std::string& body) {
  return ApiErrorOf(ParseCompletion(body).status());
}
ApiError ChatError(const std::string& body) { return ApiErrorOf(ParseChat(body).status()); }

TEST(RequestTest, ACompletionHasOpenAisDefaults) {
  const auto request = ParseCompletion(Completion().dump());
  ASSERT_TRUE(request.ok()) << request.status();

  EXPECT_EQ(request->prompts.size(), 1u);
  EXPECT_EQ(request->prompts[0].text, "12=");
  EXPECT_EQ(request->sampling.max_tokens, 0u);
  EXPECT_EQ(request->most_tokens, 16u);
  EXPECT_EQ(request->sampling.temperature, 1);
  EXPECT_EQ(request->n, 1u);
  EXPECT_FALSE(request->seed || request->stream || request->logprobs || request->echo);
}

TEST(RequestTest, EveryFieldOfACompletionIsRead) {
  const auto request = ParseCompletion(Completion({{"max_tokens", 5},
                                                   {"temperature", 0.5},
                                                   {"top_p", 0.9},
                                                   {"top_k", 7},
                                                   {"min_p", 0.1},
                                                   {"n", 3},
                                                   {"stream", true},
                                                   {"stream_options", {{"include_usage", true}}},
                                                   {"stop", {"a", "b"}},
                                                   {"seed", -1},
                                                   {"logprobs", 2},
                                                   {"min_tokens", 1},
                                                   {"ignore_eos", true},
                                                   {"stop_token_ids", {3, 4}},
                                                   {"return_token_ids", true},
                                                   {"return_versions", true},
                                                   {"logprobs_mode", "raw"}})
                                           .dump());
  ASSERT_TRUE(request.ok()) << request.status();

  EXPECT_EQ(request->sampling.max_tokens, 5u);
  EXPECT_FLOAT_EQ(request->sampling.temperature, 0.5f);
  EXPECT_EQ(request->sampling.top_p, 0.9);
  EXPECT_EQ(request->sampling.top_k, 7u);
  EXPECT_EQ(request->sampling.min_p, 0.1);
  EXPECT_EQ(request->sampling.min_tokens, 1u);
  EXPECT_TRUE(request->sampling.ignore_eos);
  EXPECT_THAT(request->sampling.stop, testing::ElementsAre("a", "b"));
  EXPECT_THAT(request->sampling.stop_ids, testing::ElementsAre(3, 4));
  EXPECT_EQ(request->n, 3u);
  EXPECT_EQ(request->seed, UINT64_MAX);
  EXPECT_TRUE(request->stream && request->include_usage && request->logprobs &&
              request->return_token_ids && request->return_versions && request->raw_logprobs);
  EXPECT_EQ(request->top_logprobs, 2u);
}

TEST(RequestTest, TopPOf0LeavesTheMostLikelyTokenAlone) {
  EXPECT_GT(ParseCompletion(Completion({{"top_p", 0}}).dump())->sampling.top_p, 0)
      << "to the engine, 0 means no limit";
  EXPECT_LT(ParseCompletion(Completion({{"top_p", 0}}).dump())->sampling.top_p, 1e-300);
  EXPECT_EQ(ParseCompletion(Completion().dump())->sampling.top_p, 1);
  EXPECT_EQ(ParseCompletion(Completion({{"top_k", -1}}).dump())->sampling.top_k, 0u);
}

TEST(RequestTest, OfGreedyDrawsTheModelsOwnLogprobsAreTold) {
  EXPECT_TRUE(ParseCompletion(Completion({{"temperature", 0}}).dump())->raw_logprobs);
  EXPECT_FALSE(
      ParseCompletion(Completion({{"temperature", 0}, {"logprobs_mode", "processed"}}).dump())
          ->raw_logprobs);
  EXPECT_FALSE(ParseCompletion(Completion({{"temperature", 0.5}}).dump())->raw_logprobs);
}

TEST(RequestTest, APromptAloneIsToldWithEcho) {
  const auto request =
      ParseCompletion(Completion({{"max_tokens", 0}, {"echo", true}, {"logprobs", 1}}).dump());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->prompt_only);
  EXPECT_EQ(request->sampling.max_tokens, 1u);
  EXPECT_EQ(CompletionError(Completion({{"max_tokens", 0}}).dump()).param, "max_tokens");
}

TEST(RequestTest, WhatChangesNothingIsTakenAndWhatWouldIsRefusedByName) {
  const Json neutral = {{"frequency_penalty", 0.0},
                        {"presence_penalty", 0},
                        {"repetition_penalty", 1.0},
                        {"logit_bias", Json::object()},
                        {"best_of", 2},
                        {"n", 2},
                        {"response_format", {{"type", "text"}}},
                        {"skip_special_tokens", true},
                        {"user", "me"},
                        {"store", false},
                        {"metadata", Json::object()},
                        {"service_tier", "auto"},
                        {"parallel_tool_calls", true}};
  EXPECT_EQ(ParseCompletion(Completion(neutral).dump()).status(), absl::OkStatus());
  EXPECT_EQ(ParseChat(Chat(neutral).dump()).status(), absl::OkStatus());

  const std::vector<Json> wrong = {{{"frequency_penalty", 0.5}},
                                   {{"logit_bias", {{"5", 1}}}},
                                   {{"best_of", 4}},
                                   {{"response_format", {{"type", "json_object"}}}},
                                   {{"store", true}},
                                   {{"repetition_penalty", 1.1}},
                                   {{"user", 5}},
                                   {{"metadata", "x"}}};
  for (const Json& fields : wrong) {
    const ApiError error = ChatError(Chat(fields).dump());
    EXPECT_EQ(error.status, 400) << fields.dump();
    EXPECT_EQ(error.param, fields.begin().key()) << error.message;
  }
}

TEST(RequestTest, APromptIsATextTextsIdsOrListsOfIds) {
  const auto prompts = [](const Json& prompt) {
    return ParseCompletion(Completion({{"prompt", prompt}}).dump())->prompts;
  };
  EXPECT_EQ(prompts("a").size(), 1u);
  EXPECT_EQ(prompts({"a", "b"})[1].text, "b");
  EXPECT_THAT(prompts({1, 2, 3})[0].ids, testing::ElementsAre(1, 2, 3));

  const auto lists = prompts(Json::array({Json::array({1, 2}), Json::array({3})}));
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_THAT(lists[1].ids, testing::ElementsAre(3));
}

TEST(RequestTest, ChatJoinsTextPartsAndParsesArgumentsOfToolCalls) {
  const Json messages = {
      {{"role", "user"},
       {"content", {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}}}},
      {{"role", "assistant"},
       {"content", nullptr},
       {"refusal", nullptr},
       {"tool_calls",
        {{{"id", "c1"},
          {"type", "function"},
          {"function", {{"name", "f"}, {"arguments", "{\"x\": 1}"}}}}}}},
      {{"role", "tool"}, {"content", "2"}, {"tool_call_id", "c1"}}};
  const Json tools = {
      {{"type", "function"}, {"function", {{"name", "f"}, {"parameters", Json::object()}}}}};
  const auto request = ParseChat(Chat({{"messages", messages},
                                       {"tools", tools},
                                       {"chat_template_kwargs", {{"enable_thinking", false}}}})
                                     .dump());
  ASSERT_TRUE(request.ok()) << request.status();

  const Json& conversation = *request->conversation;
  EXPECT_EQ(conversation["messages"][0]["content"], "ab");
  EXPECT_EQ(conversation["messages"][1]["tool_calls"][0]["function"]["arguments"]["x"], 1);
  EXPECT_EQ(conversation["messages"][2]["tool_call_id"], "c1");
  EXPECT_EQ(conversation["tools"], tools);
  EXPECT_EQ(conversation["enable_thinking"], false);
  EXPECT_EQ(conversation["add_generation_prompt"], true);
  EXPECT_EQ(request->sampling.max_tokens, 0u);
}

TEST(RequestTest, ToolChoiceNoneLeavesToolsOut) {
  const Json tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const auto request = ParseChat(Chat({{"tools", tools}, {"tool_choice", "none"}}).dump());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_FALSE(request->conversation->contains("tools"));
}

TEST(RequestTest, AFieldThatDoesNotFitIsRefusedByName) {
  const std::vector<std::pair<Json, std::string>> wrong = {
      {{{"max_tokens", 0}}, "max_tokens"},
      {{{"max_tokens", -3}}, "max_tokens"},
      {{{"max_tokens", 1e300}}, "max_tokens"},
      {{{"max_tokens", "5"}}, "max_tokens"},
      {{{"max_tokens", 1.5}}, "max_tokens"},
      {{{"max_tokens", UINT64_MAX}}, "max_tokens"},
      {{{"temperature", -1}}, "temperature"},
      {{{"temperature", "hot"}}, "temperature"},
      {{{"top_p", 1.5}}, "top_p"},
      {{{"n", 129}}, "n"},
      {{{"n", 0}}, "n"},
      {{{"stream", 1}}, "stream"},
      {{{"stop", 5}}, "stop"},
      {{{"stop", {""}}}, "stop"},
      {{{"stop", Json(std::vector<std::string>(17, "a"))}}, "stop"},
      {{{"seed", 1.5}}, "seed"},
      {{{"logprobs", 21}}, "logprobs"},
      {{{"logprobs", true}}, "logprobs"},
      {{{"prompt", 5}}, "prompt"},
      {{{"prompt", Json::array()}}, "prompt"},
      {{{"prompt", {1, -2}}}, "prompt"},
      {{{"prompt", {"a", 5}}}, "prompt"},
      {{{"prompt", nullptr}}, "prompt"},
      {{{"model", nullptr}}, "model"},
      {{{"model", 5}}, "model"},
      {{{"stream_options", {{"include_usage", true}}}}, "stream_options"},
      {{{"stop_token_ids", {-1}}}, "stop_token_ids"},
      {{{"logprobs_mode", "odd"}}, "logprobs_mode"},
      {{{"logit_bias", {{"5", 1}}}}, "logit_bias"},
      {{{"max_token", 5}}, "max_token"},
      {{{"suffix", "x"}}, "suffix"},
  };

  for (const auto& [fields, name] : wrong) {
    const ApiError error = CompletionError(Completion(fields).dump());
    EXPECT_EQ(error.status, 400) << fields.dump();
    EXPECT_EQ(error.param, name) << fields.dump() << " " << error.message;
    EXPECT_THAT(error.message, testing::HasSubstr(name));
  }
}

TEST(RequestTest, AChatThatDoesNotFitIsRefusedByName) {
  const auto messages = [](Json message) {
    return Json{{"messages", Json::array({std::move(message)})}};
  };
  const std::vector<std::pair<Json, std::string>> wrong = {
      {{{"messages", Json::array()}}, "messages"},
      {{{"messages", "hi"}}, "messages"},
      {messages("hi"), "messages[0]"},
      {messages({{"role", "wizard"}, {"content", "x"}}), "messages[0].role"},
      {messages({{"content", "x"}}), "messages[0].role"},
      {messages({{"role", 5}, {"content", "x"}}), "messages[0].role"},
      {messages({{"role", Json::array({"user"})}, {"content", "x"}}), "messages[0].role"},
      {messages({{"role", {{"user", true}}}, {"content", "x"}}), "messages[0].role"},
      {messages({{"role", nullptr}, {"content", "x"}}), "messages[0].role"},
      {messages({{"role", "user"}}), "messages[0].content"},
      {messages({{"role", "user"}, {"content", 5}}), "messages[0].content"},
      {messages(
           {{"role", "user"}, {"content", {{{"type", "image_url"}, {"image_url", "http://x"}}}}}),
       "messages[0].content[0].type"},
      {messages({{"role", "user"}, {"content", "x"}, {"weight", 1}}), "messages[0].weight"},
      {messages({{"role", "assistant"},
                 {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", "{"}}}}}}}),
       "messages[0].tool_calls[0].function.arguments"},
      {{{"tools", {{{"type", "function"}}}}}, "tools[0]"},
      {{{"tool_choice", "required"}}, "tool_choice"},
      {{{"top_logprobs", 3}}, "top_logprobs"},
      {{{"max_tokens", 3}, {"max_completion_tokens", 4}}, "max_tokens"},
      {{{"chat_template_kwargs", {{"messages", 1}}}}, "chat_template_kwargs"},
      {{{"continue_final_message", true}}, "continue_final_message"},
      {{{"prompt", "x"}}, "prompt"},
  };

  for (const auto& [fields, name] : wrong) {
    const ApiError error = ChatError(Chat(fields).dump());
    EXPECT_EQ(error.status, 400) << fields.dump();
    EXPECT_EQ(error.param, name) << fields.dump() << " " << error.message;
  }
}

TEST(RequestTest, AnIntegerThatWouldBecomeAnotherNumberIsRefusedWhereverItStands) {
  const std::string call = R"({"model": "m", "messages": [{"role": "assistant", )"
                           R"("tool_calls": [{"function": {"name": "f", )"
                           R"("arguments": "{\"x\": -9223372036854775809}"}}]}]})";

  const ApiError in_arguments = ApiErrorOf(ParseChat(call).status());
  EXPECT_EQ(in_arguments.param, "messages[0].tool_calls[0].function.arguments");
  EXPECT_THAT(in_arguments.message,
              testing::HasSubstr("the integer -9223372036854775809 is beyond 64 bits"));

  const std::string tools = R"({"model": "m", "messages": [{"role": "user", "content": "1"}], )"
                            R"("tools": [{"type": "function", "function": {"name": "f", )"
                            R"("parameters": {"maximum": 18446744073709551616}}}]})";
  EXPECT_THAT(ApiErrorOf(ParseChat(tools).status()).message,
              testing::HasSubstr("the integer 18446744073709551616 is beyond 64 bits"));
}

TEST(RequestTest, AMisspelledFieldIsToldItsNearest) {
  EXPECT_THAT(CompletionError(Completion({{"max_token", 5}}).dump()).message,
              testing::HasSubstr("did you mean max_tokens?"));
}

TEST(RequestTest, HostileJsonIsRefusedWithinTheLimits) {
  const std::string deep =
      absl::StrCat("{\"model\": ", std::string(100'000, '['), std::string(100'000, ']'), "}");

  std::string wide = "{\"model\": \"m\", \"prompt\": [[1]";
  for (int i = 0; i < 1'100'000; ++i) wide += ",[]";
  wide += "]}";

  std::string members = "{\"model\": \"m\"";
  for (int i = 0; i < 500'000; ++i) members += absl::StrCat(",\"", i, "\":0");
  members += "}";

  std::string objects = "{\"model\": [{}";
  while (objects.size() < kMaxBody - 10) objects += ",{}";
  objects += "]}";

  for (const std::string& body :
       {members, objects, std::string(), std::string("null"), std::string("[]"), std::string("{"),
        std::string("{\"model\": \"\xff\"}"), std::string("{\"model\": 1e999}"),
        std::string("{\"model\": \"m\", \"model\": \"n\"}"), std::string("{\"model\": \"m\"} x"),
        std::string("\0{}", 3), deep, wide}) {
    EXPECT_EQ(CompletionError(body).status, 400) << body.substr(0, 40);
    EXPECT_EQ(CompletionError(body).code, "invalid_json") << body.substr(0, 40);
    EXPECT_EQ(ChatError(body).status, 400) << body.substr(0, 40);
  }

  EXPECT_EQ(CompletionError(std::string(kMaxBody + 1, ' ')).status, 413);
}

TEST(RequestTest, MessagesAndToolsHaveTheirLimits) {
  const Json message = {{"role", "user"}, {"content", "x"}};
  EXPECT_EQ(
      ChatError(Chat({{"messages", std::vector<Json>(kMaxMessages + 1, message)}}).dump()).code,
      "too_many_messages");
  EXPECT_TRUE(
      ParseChat(Chat({{"messages", std::vector<Json>(kMaxMessages, message)}}).dump()).ok());

  const Json tools = {
      {{"type", "function"}, {"function", {{"name", std::string(kMaxTools, 'f')}}}}};
  EXPECT_EQ(ChatError(Chat({{"tools", tools}}).dump()).code, "tools_too_large");

  EXPECT_EQ(CompletionError(
                Completion({{"prompt", std::vector<std::string>(100, "a")}, {"n", 100}}).dump())
                .param,
            "n");
}

}  // namespace
}  // namespace sluice::rollout::http
