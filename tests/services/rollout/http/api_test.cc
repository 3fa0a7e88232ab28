#include "services/rollout/http/api.h"

#include <deque>

#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/splitmix.h"
#include "common/testing/data.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "services/rollout/http/error.h"
#include "tests/services/rollout/http/fake_model.h"

namespace sluice::rollout::http {
namespace {

using Json = nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;

// Records what a client would see.
class Seen : public Reply {
 public:
  void Send(Response response) override {
    SLUICE_CHECK(!began && !sent);
    sent = std::move(response);
  }

  void BeginStream() override {
    SLUICE_CHECK(!began && !sent);
    began = true;
  }

  void Write(std::string events) override {
    SLUICE_CHECK(began && !ended);
    stream += events;
  }

  void End() override { ended = true; }

  Json body() const { return Json::parse(sent->body); }
  // The objects of the stream. [DONE] is a text, and comments are left out.
  std::vector<Json> events() const {
    std::vector<Json> events;
    for (absl::string_view event : absl::StrSplit(stream, "\n\n", absl::SkipEmpty())) {
      if (!absl::ConsumePrefix(&event, "data: ")) continue;
      events.push_back(event == "[DONE]" ? Json("[DONE]") : Json::parse(event));
    }
    return events;
  }

  std::optional<Response> sent;
  std::string stream;
  bool began = false, ended = false;
};

class ApiTest : public testing::Test {
 protected:
  void SetUp() override { Make(nullptr); }

  void Make(const Keys* keys, uint32_t most_answers = 8) {
    guests_ = std::make_unique<Guests>(most_answers);
    api_ = std::make_unique<Api>(Api::Options{
        .keys = keys,
        .guests = guests_.get(),
        .clock = &clock_,
        .random = [this] { return random_.Next(); },
        .work =
            [this](std::function<void()> run) { hold_ ? held_.push_back(std::move(run)) : run(); },
        .post = [](std::function<void()> run) { run(); }});
    api_->SetModel(model_);
  }

  // Makes the model one with this chat template, and uses no keys.
  void MakeWithTemplate(const std::string& chat_template) {
    const std::string path = testing_data::TempPath("chat_template");
    ASSERT_TRUE(WriteFileAtomic(path, chat_template).ok());
    model_ = std::make_shared<FakeModel>("digits", path);
    Make(nullptr);
  }

  std::shared_ptr<Seen> Ask(const std::string& path, const Json& body,
                            const std::string& key = "") {
    auto seen = std::make_shared<Seen>();
    const std::string text = body.dump();
    const auto route = api_->RouteRequest({.method = "POST",
                                           .target = path,
                                           .authorization = key,
                                           .content_type = "application/json",
                                           .content_length = static_cast<int64_t>(text.size())});
    if (!route.ok()) {
      const ApiError error = ApiErrorOf(route.status());
      seen->Send({.status = error.status, .body = ErrorJson(error)});
    } else {
      last_call_ = api_->Handle(*route, text, seen);
    }
    return seen;
  }

  // Asks for a completion of "12=". `more` adds fields or replaces them.
  std::shared_ptr<Seen> Complete(Json more = Json::object()) {
    Json body = {{"model", "digits"}, {"prompt", "12="}};
    body.update(more);
    return Ask("/v1/completions", body);
  }

  std::shared_ptr<Seen> Get(const std::string& path) {
    auto seen = std::make_shared<Seen>();
    api_->Handle(*api_->RouteRequest({.method = "GET", .target = path}), "", seen);
    return seen;
  }

  std::vector<Request> requests() { return model_->AwaitRequests(0); }

  ManualClock clock_;
  SplitMix64 random_{1};
  bool hold_ = false;  // Work waits in held_ until the test runs it.
  std::deque<std::function<void()>> held_;
  std::shared_ptr<FakeModel> model_ = std::make_shared<FakeModel>();
  std::unique_ptr<Guests> guests_;
  std::unique_ptr<Api> api_;
  uint64_t last_call_ = 0;
};

TEST_F(ApiTest, ACompletionBecomesARequestAndItsTokensTheResponse) {
  const auto seen = Complete({{"max_tokens", 4}, {"seed", 7}, {"temperature", 0}});
  ASSERT_EQ(requests().size(), 1u);

  const Request request = requests()[0];
  EXPECT_EQ(OwnerOf(request.id), RequestOwner::kGuest);
  EXPECT_THAT(*request.prompt, ElementsAre(1, 4, 5, 13));
  EXPECT_EQ(request.order, RequestClass::kApi);
  EXPECT_EQ(request.seed, GroupSeed(7, 0));
  EXPECT_FALSE(request.trainable);
  EXPECT_EQ(request.sampling.max_tokens, 4u);

  guests_->DeliverEvents(Step({Sampled(request.id, 5, "2")}));
  EXPECT_FALSE(seen->sent);

  guests_->DeliverEvents(
      Step({Sampled(request.id, 4, "1"), Sampled(request.id, 2, "", FinishReason::kStop)}));
  ASSERT_TRUE(seen->sent);
  EXPECT_EQ(seen->sent->status, 200);

  const Json body = seen->body();
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "digits");
  EXPECT_EQ(body["system_fingerprint"], "1:3-digest3");
  EXPECT_EQ(body["choices"][0]["text"], "21");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["usage"],
            (Json{{"prompt_tokens", 4}, {"completion_tokens", 3}, {"total_tokens", 7}}));
  EXPECT_EQ(api_->calls(), 0u);
  EXPECT_EQ(api_->answers(), 0u);
}

TEST_F(ApiTest, SeveralPromptsAndNMakeOneGroupEach) {
  const auto seen = Complete({{"prompt", {"1=", "2="}}, {"n", 2}});
  const auto asked = requests();
  ASSERT_EQ(asked.size(), 4u);
  EXPECT_EQ(asked[0].group, asked[1].group);
  EXPECT_NE(asked[0].group, 0u);
  EXPECT_NE(asked[0].group, asked[2].group);
  EXPECT_EQ(asked[0].prompt, asked[1].prompt);
  EXPECT_EQ(asked[1].member, 1u);

  for (size_t i : {3, 1, 0, 2})
    guests_->DeliverEvents(
        Step({Sampled(asked[i].id, 3, std::to_string(i), FinishReason::kLength)}));
  ASSERT_TRUE(seen->sent);

  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(seen->body()["choices"][i]["text"], std::to_string(i));
    EXPECT_EQ(seen->body()["choices"][i]["finish_reason"], "length");
  }
}

TEST_F(ApiTest, EchoLogprobsIdsAndVersionsAreToldWhereAskedFor) {
  const auto seen = Complete({{"prompt", {1, 4, 13}},
                              {"logprobs", 0},
                              {"return_token_ids", true},
                              {"return_versions", true}});
  const uint64_t id = requests()[0].id;
  guests_->DeliverEvents(
      Step({Sampled(id, 5, "2"), Sampled(id, 6, "3", FinishReason::kLength, {1, 4})}));

  const Json choice = seen->body()["choices"][0];
  EXPECT_EQ(choice["prompt_token_ids"], (Json{1, 4, 13}));
  EXPECT_EQ(choice["token_ids"], (Json{5, 6}));
  EXPECT_EQ(choice["versions"],
            (Json{{{"version", "1:3"}, {"tokens", 1}}, {{"version", "1:4"}, {"tokens", 1}}}));
  EXPECT_EQ(choice["logprobs"]["tokens"], (Json{"2", "3"}));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], (Json{-0.5, -0.5}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], (Json{0, 1}));
  EXPECT_EQ(seen->body()["system_fingerprint"], "1:4-digest4");

  const auto echoed = Complete({{"prompt", {1, 4, 13}}, {"echo", true}});
  guests_->DeliverEvents(Step({Sampled(requests()[1].id, 5, "2", FinishReason::kLength)}));
  EXPECT_EQ(echoed->body()["choices"][0]["text"], "1=2");
}

TEST_F(ApiTest, EchoTellsTheLogprobsOfThePrompt) {
  const auto seen = Complete({{"prompt", {4, 5, 13}}, {"echo", true}, {"logprobs", 1}});
  ASSERT_TRUE(requests()[0].prompt_logprobs);
  TokenEvent first = Sampled(requests()[0].id, 5, "2");
  auto details = std::make_shared<TokenDetails>(*first.details);
  details->prompt_logprobs = {-1.5f, -2.5f};
  details->prompt_top = {{{5, -1.5f}}, {{6, -0.25f}}};
  details->top = {{5, -0.5f}};
  first.details = details;
  guests_->DeliverEvents(Step({first, Sampled(requests()[0].id, 6, "3", FinishReason::kLength)}));

  const Json choice = seen->body()["choices"][0];
  EXPECT_EQ(choice["text"], "12=23");
  EXPECT_EQ(choice["logprobs"]["tokens"], (Json{"1", "2", "=", "2", "3"}));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], (Json{nullptr, -1.5, -2.5, -0.5, -0.5}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], (Json{0, 1, 2, 3, 4}));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][0], nullptr);
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][2], (Json{{"3", -0.25}, {"=", -2.5}}))
      << "the token itself is always there";
}

TEST_F(ApiTest, APromptAloneIsToldWithoutAnAnswer) {
  const auto seen = Complete({{"prompt", {4, 5, 13}},
                              {"echo", true},
                              {"logprobs", 0},
                              {"max_tokens", 0},
                              {"return_token_ids", true}});
  ASSERT_EQ(requests()[0].sampling.max_tokens, 1u);
  TokenEvent only = Sampled(requests()[0].id, 5, "2", FinishReason::kLength);
  auto details = std::make_shared<TokenDetails>(*only.details);
  details->prompt_logprobs = {-1.5f, -2.5f};
  only.details = details;
  guests_->DeliverEvents(Step({only}));

  const Json choice = seen->body()["choices"][0];
  EXPECT_EQ(choice["text"], "12=");
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], (Json{nullptr, -1.5, -2.5}));
  EXPECT_EQ(choice["token_ids"], Json::array());
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(seen->body()["usage"],
            (Json{{"prompt_tokens", 3}, {"completion_tokens", 0}, {"total_tokens", 3}}));
}

TEST_F(ApiTest, WithoutMaxTokensAnAnswerHasTheDefaultOrAsManyTokensAsFit) {
  const auto prompt = [](size_t tokens) { return Json(std::vector<int32_t>(tokens, 4)); };
  Complete({{"prompt", {prompt(60), prompt(50)}}});
  EXPECT_EQ(requests()[0].sampling.max_tokens, 4u)
      << "the default is 16, and the longer prompt leaves 4";
  EXPECT_EQ(requests()[1].sampling.max_tokens, 4u);

  Complete({{"prompt", prompt(40)}});
  EXPECT_EQ(requests()[2].sampling.max_tokens, 16u);

  const Json error = Complete({{"prompt", prompt(64)}})->body()["error"];
  EXPECT_THAT(error["message"].get<std::string>(),
              HasSubstr("the prompt has 64 tokens; this model's context holds 64"));
  EXPECT_THAT(error["message"].get<std::string>(), testing::Not(HasSubstr("max_tokens")));
}

TEST_F(ApiTest, AStreamHasChunksUsageAndDone) {
  const auto seen =
      Complete({{"stream", true}, {"stream_options", {{"include_usage", true}}}, {"n", 2}});
  EXPECT_FALSE(seen->began) << "an error could still be told as such";
  const uint64_t a = requests()[0].id, b = requests()[1].id;
  guests_->DeliverEvents(Step({Sampled(a, 5, "2"), Sampled(b, 6, "")}));
  EXPECT_EQ(seen->events().size(), 1u) << "a token without text is not told";

  guests_->DeliverEvents(
      Step({Sampled(a, 2, "", FinishReason::kStop), Sampled(b, 6, "x", FinishReason::kLength)}));

  const auto events = seen->events();
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0]["choices"][0]["text"], "2");
  EXPECT_EQ(events[0]["usage"], nullptr);
  EXPECT_EQ(events[1]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(events[2]["choices"][0]["index"], 1);
  EXPECT_EQ(events[3]["choices"], Json::array());
  EXPECT_EQ(events[3]["usage"]["completion_tokens"], 4);
  EXPECT_EQ(events[4], "[DONE]");
  EXPECT_TRUE(seen->ended);
  EXPECT_EQ(api_->calls(), 0u);
}

TEST_F(ApiTest, AChatIsRenderedByTheTemplateWithItsTools) {
  ASSERT_NO_FATAL_FAILURE(MakeWithTemplate(
      "{% for m in messages %}{{ m.content }}={% endfor %}{% if tools %}{{ tools[0].function.name "
      "}}{% endif %}{% if add_generation_prompt %}9{% endif %}"));
  const Json tools = {{{"type", "function"}, {"function", {{"name", "78"}}}}};

  const auto seen =
      Ask("/v1/chat/completions", {{"model", "digits"},
                                   {"messages", {{{"role", "user"}, {"content", "12"}}}},
                                   {"tools", tools},
                                   {"stream", true},
                                   {"logprobs", true}});
  ASSERT_EQ(requests().size(), 1u) << (seen->sent ? seen->sent->body : "");
  EXPECT_THAT(*requests()[0].prompt, ElementsAre(4, 5, 13, 10, 11, 12));
  EXPECT_EQ(requests()[0].sampling.max_tokens, 58u) << "as many as the context holds";

  const uint64_t id = requests()[0].id;
  guests_->DeliverEvents(Step({Sampled(id, 5, "2"), Sampled(id, 6, "3", FinishReason::kLength)}));

  const auto events = seen->events();
  EXPECT_EQ(events[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events[0]["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", "2"}}));
  EXPECT_EQ(events[0]["choices"][0]["logprobs"]["content"][0]["bytes"], (Json{'2'}));
  EXPECT_EQ(events[1]["choices"][0]["delta"], (Json{{"content", "3"}}));

  const auto cont =
      Ask("/v1/chat/completions",
          {{"model", "digits"},
           {"messages",
            {{{"role", "user"}, {"content", "1"}}, {{"role", "assistant"}, {"content", "34"}}}},
           {"continue_final_message", true}});
  ASSERT_EQ(requests().size(), 2u);

  EXPECT_THAT(*requests()[1].prompt, ElementsAre(4, 13, 6, 7))
      << "what the template writes behind the last message is cut off";
}

TEST_F(ApiTest, CallsOfToolsAreParsedWhereTheTemplateWritesThem) {
  ASSERT_NO_FATAL_FAILURE(
      MakeWithTemplate("{% for m in messages %}{{ m.content }}={% endfor %}{# <tool_call> #}"));
  const Json tools = {{{"type", "function"}, {"function", {{"name", "add"}}}}};
  Json body = {
      {"model", "digits"}, {"messages", {{{"role", "user"}, {"content", "12"}}}}, {"tools", tools}};
  const auto answer = [&](size_t asked) {
    const uint64_t id = requests()[asked].id;
    guests_->DeliverEvents(
        Step({Sampled(id, 5, "Well.\n<tool"),
              Sampled(id, 6, "_call>{\"name\": \"add\", \"arguments\": {\"x\": 1}}</tool_call>"),
              Sampled(id, 7, "\n", FinishReason::kStop)}));
  };

  const auto whole = Ask("/v1/chat/completions", body);
  answer(0);

  const Json choice = Json::parse(whole->sent->body)["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "Well.");
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"],
            (Json{{"name", "add"}, {"arguments", "{\"x\": 1}"}}));
  EXPECT_EQ(choice["finish_reason"], "tool_calls");

  body["stream"] = true;
  const auto streamed = Ask("/v1/chat/completions", body);
  answer(1);

  const auto events = streamed->events();
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events[0]["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", "Well."}}));
  EXPECT_EQ(events[1]["choices"][0]["delta"]["tool_calls"][0]["index"], 0);
  EXPECT_EQ(events[1]["choices"][0]["delta"]["tool_calls"][0]["function"]["name"], "add");
  EXPECT_EQ(events[2]["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(events[2]["choices"][0]["delta"], Json::object());

  body["stream"] = false, body["tool_choice"] = "none";
  const auto none = Ask("/v1/chat/completions", body);
  answer(2);
  EXPECT_EQ(Json::parse(none->sent->body)["choices"][0]["finish_reason"], "stop")
      << "what the model writes of calls stays text";
}

TEST_F(ApiTest, WhatTheModelCannotDoIsRefusedByName) {
  const auto error = [&](Json more) { return Complete(std::move(more))->body()["error"]; };
  EXPECT_EQ(error({{"max_tokens", 61}})["code"], "context_length_exceeded");
  EXPECT_EQ(error({{"model", "gpt"}})["code"], "model_not_found");
  EXPECT_EQ(error({{"prompt", ""}, {"temperature", -1}})["param"], "temperature");

  const auto chat =
      Ask("/v1/chat/completions",
          {{"model", "digits"}, {"messages", {{{"role", "user"}, {"content", "1"}}}}});
  EXPECT_EQ(chat->body()["error"]["code"], "no_chat_template");
  EXPECT_TRUE(requests().empty());
}

TEST_F(ApiTest, WithoutKeysOnlyThisMachineMayBeNamedAsTheHost) {
  const auto status = [&](const std::string& host, const char* target) {
    const auto route = api_->RouteRequest({.method = "GET", .target = target, .host = host});
    return route.ok() ? 200 : ApiErrorOf(route.status()).status;
  };

  for (const char* host : {"", "localhost", "LocalHost:7422", "127.0.0.1", "127.0.0.1:7422",
                           "127.1.2.3:1", "[::1]", "[::1]:7422"})
    EXPECT_EQ(status(host, "/v1/models"), 200) << host;
  for (const char* host :
       {"evil.example", "evil.example:7422", "localhost.evil.example", "127.0.0.1.evil.example",
        "127.evil:80", "[::2]:80", "10.0.0.1", "0.0.0.0:7422"})
    EXPECT_EQ(status(host, "/v1/models"), 403) << host;
  EXPECT_EQ(status("pod-ip:7422", "/livez"), 200) << "probes come by any name";
}

TEST_F(ApiTest, PathsAndMethodsAreCheckedByTheHeadAlone) {
  const auto status = [&](RequestHead head) {
    return ApiErrorOf(api_->RouteRequest(head).status()).status;
  };

  EXPECT_EQ(status({.method = "GET", .target = "/v2"}), 404);
  EXPECT_EQ(status({.method = "GET", .target = "/v1/completions"}), 405);
  EXPECT_EQ(status({.method = "DELETE", .target = "/v1/models"}), 405);
  EXPECT_EQ(status({.method = "POST",
                    .target = "/v1/completions",
                    .content_type = "text/plain",
                    .content_length = 5}),
            415);
  EXPECT_EQ(
      status({.method = "POST", .target = "/v1/completions", .content_type = "application/json"}),
      411);
  EXPECT_EQ(status({.method = "POST",
                    .target = "/v1/completions",
                    .content_type = "application/json",
                    .content_length = kMaxBody + 1}),
            413);

  const RequestHead post = {.method = "POST",
                            .target = "/v1/completions",
                            .content_type = "application/json",
                            .content_length = 5};
  for (const char* type : {"", "application/jsonp", "application/json, text/html",
                           "application/json+x", "text/json"}) {
    RequestHead head = post;
    head.content_type = type;
    EXPECT_EQ(status(head), 415) << type;
  }

  for (const char* encoding : {"gzip", "br", "identity, gzip"}) {
    RequestHead head = post;
    head.content_encoding = encoding;
    EXPECT_EQ(status(head), 415) << encoding;
    EXPECT_THAT(ApiErrorOf(api_->RouteRequest(head).status()).message,
                testing::HasSubstr(encoding));
  }

  RequestHead head = post;
  head.content_type = "Application/JSON ; charset=utf-8", head.content_encoding = "Identity";
  EXPECT_TRUE(api_->RouteRequest(head).ok());
  for (const char* target : {"/livez", "/readyz", "/v1/models", "/v1/models/digits"})
    EXPECT_TRUE(api_->RouteRequest({.method = "HEAD", .target = target}).ok()) << target;
  EXPECT_EQ(status({.method = "HEAD", .target = "/v1/chat/completions"}), 405);
  EXPECT_TRUE(api_->RouteRequest({.method = "POST",
                                  .target = "/v1/completions?x=1",
                                  .content_type = "application/json; charset=utf-8",
                                  .content_length = kMaxBody})
                  .ok());
}

TEST_F(ApiTest, AWrongKeyOpensNothingButTheProbes) {
  const auto keys = Keys::Parse("lab 0123456789abcdef 2\n", "keys");
  Make(&*keys);

  for (const char* target :
       {"/v1/models", "/v1/models/digits", "/v1/completions", "/v1/chat/completions", "/",
        "/metrics", "//livez", "/livez/", "/v1/../livez"}) {
    for (const char* method : {"GET", "POST"}) {
      for (const char* key : {"", "Bearer 0123456789abcdeX", "Basic 0123456789abcdef"}) {
        EXPECT_EQ(ApiErrorOf(
                      api_->RouteRequest({.method = method, .target = target, .authorization = key})
                          .status())
                      .status,
                  401)
            << method << target << key;
      }
    }
  }

  EXPECT_TRUE(api_->RouteRequest({.method = "GET", .target = "/livez"}).ok());
  EXPECT_TRUE(api_->RouteRequest({.method = "GET", .target = "/readyz"}).ok());
  EXPECT_TRUE(
      api_->RouteRequest(
              {.method = "GET", .target = "/v1/models", .authorization = "Bearer 0123456789abcdef"})
          .ok());
}

TEST_F(ApiTest, AQuotaAndTheServersLimitAre429UntilAnswersEnd) {
  const auto keys = Keys::Parse("lab 0123456789abcdef 2\nbig aaaaaaaaaaaaaaaa\n", "keys");
  Make(&*keys, /*most_answers=*/4);
  const Json body = {{"model", "digits"}, {"prompt", "1="}, {"n", 2}};
  const std::string lab = "Bearer 0123456789abcdef", big = "Bearer aaaaaaaaaaaaaaaa";
  const auto first = Ask("/v1/completions", body, lab);
  EXPECT_EQ(Ask("/v1/completions", body, lab)->body()["error"]["code"], "quota_exceeded");

  Json never = body;
  never["n"] = 5;
  EXPECT_EQ(Ask("/v1/completions", never, lab)->sent->status, 400) << "waiting does not help";
  EXPECT_FALSE(Ask("/v1/completions", body, big)->sent);

  const auto busy = Ask("/v1/completions", body, big);
  EXPECT_EQ(busy->sent->status, 429);
  EXPECT_EQ(busy->sent->retry_after, 1);
  EXPECT_EQ(busy->body()["error"]["code"], "server_busy");

  const auto asked = requests();
  guests_->DeliverEvents(Step({Sampled(asked[0].id, 3, "0", FinishReason::kStop),
                               Sampled(asked[1].id, 3, "0", FinishReason::kStop)}));
  EXPECT_EQ(first->sent->status, 200);
  EXPECT_FALSE(Ask("/v1/completions", body, lab)->sent);
}

TEST_F(ApiTest, AClientThatLeavesIsAbortedWhereverItsCallIs) {
  Complete({{"n", 3}});
  const auto asked = requests();
  guests_->DeliverEvents(Step({Sampled(asked[1].id, 3, "0", FinishReason::kStop)}));
  api_->Cancel(last_call_);
  EXPECT_THAT(model_->AwaitAborted(2), ElementsAre(asked[0].id, asked[2].id))
      << "what has ended is not aborted";

  guests_->DeliverEvents(Step({Sampled(asked[0].id, 3, "0")}));
  api_->Cancel(last_call_);

  // A call is parsed and then prepared. The client leaves before the first, then before the second.
  hold_ = true;
  for (size_t rounds : {1u, 2u}) {
    const auto seen = Complete();
    for (size_t i = 1; i < rounds; ++i) {
      auto run = std::move(held_.front());
      held_.pop_front();
      run();
    }
    api_->Cancel(last_call_);
    while (!held_.empty()) {
      auto run = std::move(held_.front());
      held_.pop_front();
      run();
    }
    EXPECT_FALSE(seen->sent);
  }

  EXPECT_EQ(requests().size(), 3u);
  EXPECT_EQ(api_->calls(), 0u);
  EXPECT_EQ(api_->answers(), 0u);
}

TEST_F(ApiTest, AFailedRequestEndsItsWholeCall) {
  const auto whole = Complete({{"n", 2}});
  const auto stream = Complete({{"stream", true}});
  const auto asked = requests();
  guests_->DeliverEvents(Step({Sampled(asked[2].id, 3, "0")}));
  StepEvents failures;
  failures.failures = {{asked[1].id, absl::DataLossError("logits are not finite")},
                       {asked[2].id, absl::DataLossError("logits are not finite")}};
  guests_->DeliverEvents(failures);

  EXPECT_EQ(whole->sent->status, 500);
  EXPECT_THAT(model_->AwaitAborted(1), ElementsAre(asked[0].id));
  EXPECT_THAT(stream->events().back().dump(), HasSubstr("server_error"));
  EXPECT_TRUE(stream->ended);
  EXPECT_EQ(api_->calls(), 0u);
}

TEST_F(ApiTest, ASilentStreamGetsACommentEach15Seconds) {
  const auto seen = Complete({{"stream", true}});
  clock_.Advance(absl::Seconds(14));
  api_->Tick();
  EXPECT_FALSE(seen->began);

  clock_.Advance(absl::Seconds(1));
  api_->Tick();
  api_->Tick();
  EXPECT_EQ(seen->stream, Format::kComment);

  clock_.Advance(absl::Seconds(15));
  api_->Tick();
  EXPECT_EQ(seen->stream.size(), 2 * std::string(Format::kComment).size());
}

TEST_F(ApiTest, ModelsListsWhatServesAndNothingLoadedIs503) {
  EXPECT_EQ(Get("/v1/models")->body()["data"][0]["id"], "digits");
  EXPECT_EQ(Get("/v1/models")->body()["data"][0]["version"], "1:3");
  EXPECT_EQ(Get("/v1/models/digits")->body()["digest"], "digest3");
  EXPECT_EQ(Get("/v1/models/other")->sent->status, 404);
  EXPECT_EQ(Get("/readyz")->sent->status, 200);

  model_->SetServing(std::nullopt);
  EXPECT_EQ(Get("/v1/models")->sent->status, 503);
  EXPECT_EQ(Complete()->body()["error"]["code"], "no_weights");

  model_->SetServing(PolicyVersion{1, 3});
  const auto running = Complete();
  api_->RemoveModel("digits", absl::UnavailableError("the job has ended"));

  EXPECT_EQ(running->sent->status, 503);
  EXPECT_EQ(running->sent->retry_after, 2);
  EXPECT_EQ(Complete()->body()["error"]["code"], "no_model_loaded");
  EXPECT_EQ(Get("/readyz")->sent->status, 503);
}

TEST_F(ApiTest, DrainingEndsWhatRunsAndTakesNothingNew) {
  const auto running = Complete();
  api_->Drain();
  EXPECT_EQ(Complete()->sent->status, 503);
  EXPECT_EQ(Get("/livez")->sent->status, 200);
  guests_->DeliverEvents(Step({Sampled(requests()[0].id, 3, "0", FinishReason::kStop)}));
  EXPECT_EQ(running->sent->status, 200);
}

}  // namespace
}  // namespace sluice::rollout::http
