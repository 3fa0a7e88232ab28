#include "common/judges/judge_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "common/base/file.h"
#include "common/base/status.h"
#include "common/pki/certificate.h"
#include "common/testing/data.h"
#include "tests/common/handed.h"
#include "tests/common/judges/judge_server.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr absl::Duration kLong = absl::Minutes(1);

JudgeConfig ConfigOf(const JudgeServer& server) {
  return {.name = "strict", .url = server.url() + "/chat/completions", .model = "judge-7b"};
}

TEST(JudgeClientTest, TheRequestIsThatOfAnOpenAiApi) {
  Handed<JudgeServer::Call> calls;
  JudgeServer server([&](const JudgeServer::Call& call) {
    calls.Push(call);
    return JudgeServer::Says("fine");
  });
  JudgeConfig config = ConfigOf(server);
  config.key = Secret(std::string("s3cret"));
  config.max_reply = 77;
  config.reply_limit_field = "max_completion_tokens";
  JudgeClient client(std::move(config));
  EXPECT_EQ(*client.Ask("be \"strict\"", "wie gut? \xc3\xa4", kLong, rpc::Cancel()), "fine");

  const JudgeServer::Call call = calls.Pop();
  EXPECT_EQ(call.target, "/v1/chat/completions");
  EXPECT_EQ(call.authorization, "Bearer s3cret");
  EXPECT_EQ(call.body, nlohmann::json::parse(R"({
    "model": "judge-7b", "temperature": 0.0, "max_completion_tokens": 77,
    "messages": [{"role": "system", "content": "be \"strict\""},
                 {"role": "user", "content": "wie gut? ä"}]})"));
}

TEST(JudgeClientTest, CallsThatAreOneTooManyAreMadeAgainUntilTheyAreAnswered) {
  std::atomic<int> calls = 0;
  JudgeServer server([&](const JudgeServer::Call&) {
    if (++calls <= 3)
      return JudgeServer::Reply{.status = calls == 2 ? 503 : 429,
                                .headers = {{"Retry-After", "1"}}};
    return JudgeServer::Says("fine");
  });
  JudgeClient client(ConfigOf(server));
  EXPECT_EQ(*client.Ask("s", "u", kLong, rpc::Cancel()), "fine");
  EXPECT_EQ(calls, 4);
}

TEST(JudgeClientTest, AJudgeThatStaysBusyIsNoFault) {
  JudgeServer server([&](const JudgeServer::Call&) {
    return JudgeServer::Reply{.status = 429, .headers = {{"Retry-After", "3600"}}};
  });
  JudgeClient client(ConfigOf(server));
  const absl::Status status = client.Ask("s", "u", absl::Milliseconds(300), rpc::Cancel()).status();
  EXPECT_EQ(ReasonOf(status), "JUDGE_BUSY") << status;
  EXPECT_TRUE(absl::IsResourceExhausted(status));
}

TEST(JudgeClientTest, RepliesThatAreNotThoseOfAnApiAreFaultsWithTheirCause) {
  std::string long_body(5 << 20, 'x');
  const std::pair<JudgeServer::Reply, const char*> cases[] = {
      {{.status = 500, .body = "boom"}, "HTTP status 500"},
      {{.status = 401, .body = "who are you, s3cret?"}, "who are you, (key)?"},
      {{.status = 302, .headers = {{"Location", "http://127.0.0.1:1/"}}}, "HTTP status 302"},
      {{.body = "<html>"}, "has no `choices`"},
      {{.body = R"({"choices": []})"}, "has no `choices`"},
      {{.body = R"({"choices": [7]})"}, "has no text"},
      {{.body = R"({"choices": [{"message": {"content": null}}]})"}, "has no text"},
      {{.body = std::string(100'000, '[')}, "has no `choices`"},
      {{.body = "\xff\xfe"}, "has no `choices`"},
      {{.body = long_body}, "above 4 MiB"},
  };
  for (const auto& [reply, message] : cases) {
    JudgeServer server([&, reply = reply](const JudgeServer::Call&) { return reply; });
    JudgeConfig config = ConfigOf(server);
    config.key = Secret(std::string("s3cret"));
    JudgeClient client(std::move(config));
    const absl::Status status = client.Ask("s", "u", kLong, rpc::Cancel()).status();
    EXPECT_EQ(ReasonOf(status), "JUDGE_FAULT") << message << status;
    EXPECT_THAT(status.message(), HasSubstr(message));
    EXPECT_THAT(status.message(), Not(HasSubstr("s3cret")));
  }
}

TEST(JudgeClientTest, ATextThatTheJudgeCannotJudgeIsToldApart) {
  const std::pair<JudgeServer::Reply, const char*> cases[] = {
      {{.status = 400, .body = "context length exceeded"}, "context length exceeded"},
      {{.status = 413}, "HTTP status 413"},
      {{.status = 422}, "HTTP status 422"},
      {{.body = R"({"choices": [{"finish_reason": "content_filter"}]})"}, "filters this text"},
      {{.body = R"({"choices": [{"finish_reason": "length", "message": {"content": "a"}}]})"},
       "longer than max_reply"},
  };
  for (const auto& [reply, message] : cases) {
    JudgeServer server([&, reply = reply](const JudgeServer::Call&) { return reply; });
    JudgeClient client(ConfigOf(server));
    // However many such texts come, the judge does not count as down.
    for (int i = 0; i < 20; ++i) {
      const absl::Status status = client.Ask("s", "u", kLong, rpc::Cancel()).status();
      ASSERT_EQ(ReasonOf(status), "JUDGE_CONTENT") << status;
      ASSERT_THAT(status.message(), HasSubstr(message));
    }
    EXPECT_EQ(client.CheckReady(), absl::OkStatus());
  }
}

TEST(JudgeClientTest, AJudgeThatFailsCallAfterCallIsLeftAlone) {
  std::atomic<int> calls = 0;
  JudgeServer server([&](const JudgeServer::Call&) -> JudgeServer::Reply {
    ++calls;
    return {.status = 500, .body = "out of order"};
  });
  JudgeClient client(ConfigOf(server));
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(ReasonOf(client.Ask("s", "u", kLong, rpc::Cancel()).status()), "JUDGE_FAULT");
  const absl::Status down = client.Ask("s", "u", kLong, rpc::Cancel()).status();
  EXPECT_EQ(ReasonOf(down), "JUDGE_BUSY");
  EXPECT_THAT(down.message(), HasSubstr("judge strict is down: judge strict: HTTP status 500"));
  EXPECT_EQ(client.CheckReady(), down);
  EXPECT_EQ(calls, 8);
}

TEST(JudgeClientTest, TokensThatNobodyCountsAreCountedAsTheMostThatTheyCanBe) {
  JudgeServer server([](const JudgeServer::Call&) -> JudgeServer::Reply {
    return {.body = R"({"choices": [{"message": {"content": "fine"}}]})"};
  });
  JudgeConfig config = ConfigOf(server);
  config.max_reply = 100;
  config.tokens = 120;
  JudgeClient client(std::move(config));
  EXPECT_TRUE(client.Ask("s", std::string(4000, 'x'), kLong, rpc::Cancel()).ok());
  EXPECT_EQ(ReasonOf(client.CheckReady()), "JUDGE_BUDGET");
}

TEST(JudgeClientTest, ALoopbackJudgeIsNotAskedThroughAProxy) {
  ASSERT_EQ(setenv("http_proxy", "http://127.0.0.1:1", 1), 0);
  JudgeServer server([](const JudgeServer::Call&) { return JudgeServer::Says("fine"); });
  JudgeConfig config = ConfigOf(server);
  config.loopback = true;
  EXPECT_TRUE(JudgeClient(std::move(config)).Ask("s", "u", kLong, rpc::Cancel()).ok());
  unsetenv("http_proxy");
}

TEST(JudgeClientTest, AJudgeThatIsNotThereIsAFault) {
  std::string url;
  {
    url = JudgeServer([](const JudgeServer::Call&) { return JudgeServer::Reply{}; }).url();
  }
  JudgeClient client({.name = "strict", .url = url, .model = "m"});
  EXPECT_EQ(ReasonOf(client.Ask("s", "u", kLong, rpc::Cancel()).status()), "JUDGE_FAULT");
}

TEST(JudgeClientTest, AHangingJudgeIsLeftAtTheTimeoutOrAtTheStop) {
  Handed<int> asked, go_on;
  JudgeServer server([&](const JudgeServer::Call&) {
    asked.Push(0);
    go_on.Pop();
    return JudgeServer::Says("late");
  });
  JudgeClient client(ConfigOf(server));
  const absl::Status timeout =
      client.Ask("s", "u", absl::Milliseconds(200), rpc::Cancel()).status();
  EXPECT_EQ(ReasonOf(timeout), "JUDGE_FAULT") << timeout;
  asked.Pop();

  rpc::Cancel stop;
  std::thread stopper([&] {
    asked.Pop();
    stop.Trigger();
  });
  EXPECT_TRUE(absl::IsCancelled(client.Ask("s", "u", kLong, stop).status()));
  stopper.join();
  go_on.Push(0);
  go_on.Push(0);
}

TEST(JudgeClientTest, TheBudgetOfTokensEndsTheCalls) {
  JudgeServer server([](const JudgeServer::Call&) { return JudgeServer::Says("fine", 60); });
  JudgeConfig config = ConfigOf(server);
  config.tokens = 100;
  JudgeClient client(std::move(config));
  EXPECT_TRUE(client.Ask("s", "u", kLong, rpc::Cancel()).ok());
  EXPECT_EQ(client.CheckReady(), absl::OkStatus());
  EXPECT_TRUE(client.Ask("s", "u", kLong, rpc::Cancel()).ok());
  EXPECT_EQ(client.CheckReady().message(),
            "judge strict has used 120 tokens; the operator's limit is 100");
  EXPECT_EQ(ReasonOf(client.Ask("s", "u", kLong, rpc::Cancel()).status()), "JUDGE_BUDGET");
}

TEST(JudgeClientTest, ManyThreadsShareTheLimit) {
  std::atomic<int> running = 0, most = 0;
  JudgeServer server([&](const JudgeServer::Call&) {
    int now = ++running;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    --running;
    return JudgeServer::Says("fine");
  });
  JudgeConfig config = ConfigOf(server);
  config.max_in_flight = 3;
  JudgeClient client(std::move(config));
  std::atomic<int> answered = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 12; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) answered += client.Ask("s", "u", kLong, rpc::Cancel()).ok();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, 240);
  EXPECT_LE(most, 3);
}

TEST(JudgeClientTest, AJudgeOfAnotherAuthorityIsNotAsked) {
  const pki::Validity validity{absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(1)};
  const pki::KeyPair ours =
      *pki::MakeAuthority({.name = "ours", .uri = "spiffe://test/ours"}, validity);
  const pki::KeyPair other =
      *pki::MakeAuthority({.name = "other", .uri = "spiffe://test/other"}, validity);
  const pki::KeyPair pair = *pki::IssueCertificate(
      ours, {.name = "judge", .uri = "spiffe://test/judge", .hosts = {"127.0.0.1"}}, validity);
  std::atomic<int> calls = 0;
  JudgeServer server(
      [&](const JudgeServer::Call&) {
        ++calls;
        return JudgeServer::Says("fine");
      },
      pair.certificate, pair.key.Reveal());
  const auto ask = [&](const pki::KeyPair& authority) {
    JudgeConfig config = ConfigOf(server);
    config.ca_file = testing_data::TempPath("ca.pem");
    EXPECT_TRUE(WriteFileAtomic(config.ca_file, authority.certificate).ok());
    return JudgeClient(std::move(config)).Ask("s", "u", kLong, rpc::Cancel()).status();
  };
  EXPECT_EQ(ask(ours), absl::OkStatus());
  EXPECT_EQ(ReasonOf(ask(other)), "JUDGE_FAULT");
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace sluice
