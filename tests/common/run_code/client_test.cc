#include "common/run_code/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/verifiers/verifier.h"
#include "tests/common/handed.h"
#include "tests/common/judges/judge_server.h"

namespace sluice::run_code {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

std::unique_ptr<Client> ClientOf(const std::string& url, absl::Duration grace = absl::Seconds(30)) {
  return *Client::Make({.url = url, .most_calls = 4, .grace = grace});
}
std::unique_ptr<Client> ClientOf(const JudgeServer& server) {
  return ClientOf("http://" + server.host());
}

absl::StatusOr<Reply> RunOn(Client& client, const Request& request,
                            const rpc::Cancel& stop = rpc::Cancel()) {
  absl::Duration turn = absl::Minutes(1);
  return client.Run(request, &turn, stop);
}

JudgeServer::Reply Prints(const std::string& out) {
  return {.body = ToJson(Reply{.compiled = std::nullopt, .ran = Ran{.out = out}})};
}

// The verifier `code` on sandboxes of a server.
class Scorer {
 public:
  explicit Scorer(Client* client, const json& args = {{"extract", "whole"}})
      : verifier_(*MakeVerifier(
            "code", args, {.run_code = MakeRunCode(client, {}, std::make_shared<rpc::Cancel>())})) {
  }
  absl::StatusOr<Verdict> Score(const std::string& program, const json& row) {
    return verifier_->Score({.text = program}, row);
  }

 private:
  const std::unique_ptr<Verifier> verifier_;
};

const json kRow = {{"answer", {{"inputs", {"20 22\n"}}, {"outputs", {"the secret 42\n"}}}}};

TEST(RunCodeClient, AProgramIsSentWithItsInputAndWithoutWhatItIsExpectedToPrint) {
  Handed<JudgeServer::Call> calls;
  JudgeServer server([&](const JudgeServer::Call& call) {
    calls.Push(call);
    return Prints("the secret 42\n");
  });
  const auto client =
      *Client::Make({.url = "http://" + server.host(), .key = Secret(std::string("s3cret"))});
  Scorer scorer(client.get());
  EXPECT_EQ(scorer.Score("print(1)", kRow)->score, 1);

  const JudgeServer::Call call = calls.Pop();
  EXPECT_EQ(call.target, "/run_code");
  EXPECT_EQ(call.authorization, "Bearer s3cret");
  EXPECT_EQ(call.body, json::parse(R"json({
    "language": "python", "code": "print(1)", "stdin": "20 22\n", "compile_timeout": 30.0,
    "run_timeout": 10.0, "cpu_timeout": 6.0, "memory_limit_MB": 512})json"));
}

TEST(RunCodeClient, TheResultThatACallIsExpectedToHaveStaysHere) {
  Handed<JudgeServer::Call> calls;
  JudgeServer server([&](const JudgeServer::Call& call) {
    calls.Push(call);
    return Prints("");
  });
  const auto client = ClientOf(server);
  Scorer scorer(client.get());
  const json row = {{"answer", {{"fn_name", "f"}, {"inputs", {{7}}}, {"outputs", {987654321}}}}};
  const auto verdict = scorer.Score("def f(x): return x", row);
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_EQ(verdict->score, 0);
  EXPECT_EQ(verdict->reason, "no_report");
  const std::string sent = calls.Pop().body.dump();
  EXPECT_THAT(sent, Not(HasSubstr("987654321")));
  EXPECT_THAT(sent, Not(HasSubstr(absl::BytesToHexString("987654321"))));
}

TEST(RunCodeClient, NoFaultOfTheServerIsANumber) {
  JudgeServer::Reply reply;
  JudgeServer server([&](const JudgeServer::Call&) { return reply; });
  const JudgeServer::Reply faults[] = {
      {.status = 500, .body = "Internal Server Error"},
      {.status = 502, .body = ToJson(Reply{.compiled = std::nullopt, .ran = Ran{}})},
      {.status = 404, .body = "{}"},
      {.status = 422, .body = R"({"detail": "no such language"})"},
      {.body = ""},
      {.body = "null"},
      {.body = FailureJson("no space left on the device")},
      {.body = R"({"status": "Success", "run_result": {"status": "Finished"}})"},
      {.body = R"({"status": "Success", "run_result": {"status": "Error"}})"},
  };
  for (const JudgeServer::Reply& fault : faults) {
    reply = fault;
    const auto client = ClientOf(server);
    Scorer scorer(client.get());
    const auto verdict = scorer.Score("print(42)", kRow);
    EXPECT_TRUE(absl::IsUnavailable(verdict.status())) << fault.status << fault.body.substr(0, 99);
    EXPECT_EQ(ReasonOf(verdict.status()), "CODE_SERVER_FAULT");
  }
}

TEST(RunCodeClient, AServerThatHangsIsGivenUp) {
  Handed<int> end;
  JudgeServer server([&](const JudgeServer::Call&) {
    end.Pop();
    return Prints("the secret 42\n");
  });
  const auto client = ClientOf("http://" + server.host(), absl::Milliseconds(1));
  const auto reply = RunOn(*client, {.code = "", .run_timeout = absl::Milliseconds(10)});
  EXPECT_TRUE(absl::IsUnavailable(reply.status())) << reply.status();
  end.Push(1);
}

// Listens on loopback, and closes each connection after its first bytes have come.
class DyingServer {
 public:
  DyingServer() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_, 8), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    url_ = absl::StrCat("http://127.0.0.1:", ntohs(address.sin_port));
    thread_ = std::thread([this] {
      for (int one; (one = accept(fd_, nullptr, nullptr)) >= 0; close(one)) {
        char bytes[64];
        (void)!read(one, bytes, sizeof bytes);
      }
    });
  }
  ~DyingServer() {
    shutdown(fd_, SHUT_RDWR);  // Ends accept().
    thread_.join();
    close(fd_);
  }
  const std::string& url() const { return url_; }

 private:
  const int fd_;
  std::string url_;
  std::thread thread_;
};

TEST(RunCodeClient, AServerThatDiesInACallOrIsNotThereIsAFaultAndThenLeftAlone) {
  std::string url;
  {
    const DyingServer server;
    url = server.url();
    const auto client = ClientOf(url);
    EXPECT_TRUE(absl::IsUnavailable(RunOn(*client, {.code = ""}).status()));
  }
  const auto client = ClientOf(url);  // Nobody listens there any more.
  absl::Status last;
  int faults = 0;
  while (absl::IsUnavailable(last = RunOn(*client, {.code = ""}).status())) ++faults;
  EXPECT_GT(faults, 0);
  EXPECT_TRUE(absl::IsResourceExhausted(last)) << last;
  EXPECT_EQ(ReasonOf(last), "CODE_SERVER_DOWN");
  EXPECT_EQ(ReasonOf(client->Capacity().status()), "CODE_SERVER_DOWN");
}

TEST(RunCodeClient, CallsThatAreOneTooManyAreMadeAgain) {
  std::atomic<int> calls = 0;
  JudgeServer server([&](const JudgeServer::Call&) {
    if (++calls <= 3) return JudgeServer::Reply{.status = calls == 2 ? 503 : 429};
    return Prints("the secret 42\n");
  });
  const auto client = ClientOf(server);
  Scorer scorer(client.get());
  const auto verdict = scorer.Score("print(42)", kRow);
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_EQ(verdict->score, 1);
  EXPECT_EQ(calls, 4);
}

TEST(RunCodeClient, StoppingEndsACallThatIsUnderWay) {
  Handed<int> begun, end;
  JudgeServer server([&](const JudgeServer::Call&) {
    begun.Push(1);
    end.Pop();
    return Prints("");
  });
  const auto client = ClientOf(server);
  rpc::Cancel stop;
  std::thread stopper([&] {
    begun.Pop();
    stop.Trigger();
  });
  EXPECT_TRUE(absl::IsCancelled(RunOn(*client, {.code = ""}, stop).status()));
  stopper.join();
  end.Push(1);
}

TEST(RunCodeClient, JobsThatStopInTheMiddleOfCallsDoNotMakeTheServerCountAsDown) {
  Handed<int> begun, end, ended;
  JudgeServer server([&](const JudgeServer::Call&) {
    begun.Push(1);
    end.Pop();
    ended.Push(1);
    return Prints("");
  });
  const auto client = ClientOf(server);
  for (int i = 0; i < 12; ++i) {
    rpc::Cancel stop;
    std::thread stopper([&] {
      begun.Pop();
      stop.Trigger();
    });
    const absl::Status stopped = RunOn(*client, {.code = ""}, stop).status();
    EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
    stopper.join();
    end.Push(1);
    ended.Pop();  // Else the next call could take this one's end.
  }
  EXPECT_EQ(client->Capacity().status(), absl::OkStatus());
}

TEST(RunCodeClient, WhatIsTooLargeIsNoFaultOfTheServer) {
  JudgeServer::Reply reply;
  JudgeServer server([&](const JudgeServer::Call&) { return reply; });
  const auto client = ClientOf(server);
  Scorer scorer(client.get());
  for (int i = 0; i < 12; ++i) {
    reply = {.body = std::string(kMostReply + 1, ' ')};
    const auto printed = scorer.Score("print('x' * 10**9)", kRow);
    ASSERT_TRUE(printed.ok()) << printed.status();
    EXPECT_EQ(printed->reason, "output_limit");
    reply = {.status = 413, .body = R"({"detail": "the request is too large"})"};
    EXPECT_TRUE(absl::IsInvalidArgument(scorer.Score("print(42)", kRow).status()));
  }
  EXPECT_EQ(client->Capacity().status(), absl::OkStatus());
}

TEST(RunCodeClient, WhatATestHasWaitedIsTakenOffTheTurnOfTheProgram) {
  std::atomic<int> calls = 0;
  JudgeServer server([&](const JudgeServer::Call&) {
    return ++calls == 1 ? JudgeServer::Reply{.status = 429} : Prints("");
  });
  const auto client = ClientOf(server);
  absl::Duration turn = absl::Minutes(1);
  ASSERT_TRUE(client->Run({.code = ""}, &turn, rpc::Cancel()).ok());
  EXPECT_LT(turn, absl::Minutes(1)) << "a server that refuses is left alone";
  turn = absl::ZeroDuration();
  EXPECT_EQ(ReasonOf(client->Run({.code = ""}, &turn, rpc::Cancel()).status()), "CODE_SERVER_BUSY");
}

TEST(RunCodeClient, ATestOutOfTimeIsRunAgainAndAProgramOutOfTimeTwiceIsNotRunAnyMore) {
  std::atomic<int> calls = 0;
  JudgeServer server([&](const JudgeServer::Call&) {
    ++calls;
    return JudgeServer::Reply{
        .body = ToJson(Reply{.compiled = std::nullopt, .ran = Ran{.timed_out = true}})};
  });
  const auto client = ClientOf(server);
  Scorer scorer(client.get(), {{"extract", "whole"}, {"score", "fraction"}});
  const json row = {
      {"answer", {{"inputs", {"1", "2", "3", "4"}}, {"outputs", {"1", "2", "3", "4"}}}}};
  const auto verdict = scorer.Score("while True: pass", row);
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_EQ(verdict->reason, "time_limit");
  EXPECT_EQ(calls, 4);
}

// Whatever faults there are, what is scored is scored as without them.
TEST(RunCodeClient, FaultsOfOneCallInTenMoveNoScore) {
  for (const int seed : {1, 2, 3}) {
    std::mt19937 random(static_cast<unsigned>(seed));
    JudgeServer server([&](const JudgeServer::Call& call) {
      if (random() % 10 == 0) return JudgeServer::Reply{.status = 500};
      return Prints(call.body["code"].get<std::string>());  // It is what the program prints.
    });
    const auto client = ClientOf(server);
    Scorer scorer(client.get());
    int scored = 0;
    for (int i = 0; i < 200; ++i) {
      const bool right = i % 3 == 0;
      const json row = {{"answer", {{"inputs", {""}}, {"outputs", {"42"}}}}};
      const auto verdict = scorer.Score(right ? "42" : "41", row);
      if (!verdict.ok()) continue;
      ++scored;
      EXPECT_EQ(verdict->score, right ? 1 : 0) << "seed " << seed;
    }
    EXPECT_GT(scored, 100) << "seed " << seed;
    EXPECT_LT(scored, 200) << "seed " << seed << ": no fault was injected";
  }
}

TEST(RunCodeClient, AKeyIsNotSentInClearToAnotherMachine) {
  const auto refused =
      Client::Make({.url = "http://10.0.0.1:8080", .key = Secret(std::string("x"))});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Client::Make({.url = "http://10.0.0.1:8080"}).ok());
  EXPECT_FALSE(Client::Make({.url = "10.0.0.1:8080"}).ok());
}

}  // namespace
}  // namespace sluice::run_code
