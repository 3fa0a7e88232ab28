// Our own client on our own server: programs in sandboxes of another machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/run_code/client.h"
#include "common/run_code/service.h"
#include "common/verifiers/verifier.h"
#include "nlohmann/json.hpp"
#include "tests/common/handed.h"

namespace sluice::run_code {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class RunCodeServerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto sandboxes = sandbox::CodeSandboxes::Make({.runs = 2});
    if (!sandboxes.ok()) GTEST_SKIP() << sandboxes.status().message();
    sandboxes_ = *std::move(sandboxes);
    service_ = std::make_unique<Service>(sandboxes_.get());
    server_ = *HttpServer::Start(
        {}, [this](const HttpRequest& request) { return service_->Answer(request); });
    client_ = *Client::Make({.url = "http://" + server_->address()});
  }
  void TearDown() override {
    if (service_ != nullptr) service_->Stop();
  }

  std::unique_ptr<Verifier> Make(const json& args, const JobLimits& limits = {}) {
    return *MakeVerifier(
        "code", args,
        {.run_code = MakeRunCode(client_.get(), limits, std::make_shared<rpc::Cancel>())});
  }
  static Verdict Score(const Verifier& verifier, const std::string& program, const json& row) {
    const auto verdict = verifier.Score({.text = program}, row);
    EXPECT_TRUE(verdict.ok()) << verdict.status();
    return verdict.value_or(Verdict{.score = -1});
  }

  std::unique_ptr<sandbox::CodeSandboxes> sandboxes_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(RunCodeServerTest, RightSolutionsScoreAndWrongOnesDoNot) {
  std::ifstream file(SLUICE_SOURCE_DIR "/tests/common/sandbox/tasks.jsonl");
  std::string line;
  int tasks = 0;
  while (std::getline(file, line)) {
    const json task = json::parse(line);
    SCOPED_TRACE(task["name"]);
    const auto verifier = Make({{"language", task["language"]}, {"extract", "whole"}});
    const Verdict right = Score(*verifier, task["right"], task);
    EXPECT_EQ(right.score, 1) << right.reason;
    EXPECT_EQ(right.reason, task["name"] == "sorted_copy" ? "right_forgeable" : "right");
    const Verdict wrong = Score(*verifier, task["wrong"], task);
    EXPECT_EQ(wrong.score, 0) << wrong.reason;
    ++tasks;
  }
  EXPECT_GE(tasks, 30);
}

TEST_F(RunCodeServerTest, TheReasonSaysHowAProgramFailed) {
  const auto verifier = Make({{"cpu_seconds", 0.3}, {"extract", "whole"}},
                             {.wall = absl::Seconds(2), .output_bytes = 1 << 16});
  const json row = {{"answer", {{"inputs", {"1\n"}}, {"outputs", {"2\n"}}}}};
  const auto reason = [&](const char* source) { return Score(*verifier, source, row).reason; };
  EXPECT_EQ(reason("print(2)"), "right");
  EXPECT_EQ(reason("print(3)"), "wrong");
  EXPECT_EQ(reason("x ="), "runtime_error");
  EXPECT_EQ(reason("print(2); raise SystemExit(1)"), "runtime_error");
  EXPECT_EQ(reason("while True: pass"), "time_limit");
  EXPECT_EQ(reason("print('x' * 100000)"), "output_limit");
  EXPECT_EQ(reason("import os; os.abort()"), "killed");
  EXPECT_EQ(reason("print('\\x01' * 1000000 + '\\n' * 20000)"), "output_limit");

  const auto cpp = Make({{"language", "cpp"}, {"extract", "whole"}});
  EXPECT_EQ(Score(*cpp, "int main() { return x; }", row).reason, "compile_error");
  EXPECT_EQ(Score(*cpp, "#include <cstdio>\nint main() { puts(\"2\"); }", row).reason, "right");
}

TEST_F(RunCodeServerTest, ForgedTestsScoreNothingAndChangeNoLaterVerdict) {
  const auto verifier =
      Make({{"extract", "whole"}, {"cpu_seconds", 0.3}}, {.wall = absl::Seconds(1)});
  const json row = {{"answer", {"assert f(2) == 3", "assert f(3) == 4", "assert f(5) == 6"}}};
  for (const char* source :
       {"import sys\nsys.exit(0)", "import os\nos._exit(0)", "def f(x):\n  raise SystemExit(0)",
        "class E(int):\n  def __eq__(self, o): return True\n  def __repr__(self): return '3'\n"
        "  def __hash__(self): return 0\ndef f(x):\n  return E()",
        "import json\njson.dumps = lambda *a, **k: '{\"int\": \"3\"}'\ndef f(x): return None",
        "import sys\nfor frame in [sys._getframe(i) for i in range(3)]:\n"
        "  frame.f_globals['encode'] = lambda *a: {'int': '3'}\ndef f(x): return 0",
        // It finds the word of the test, and writes a report of its own.
        "import gc, os, json\n"
        "nonce = [o['nonce'] for o in gc.get_objects() if type(o) is dict and 'nonce' in o][0]\n"
        "os.write(1, b'\\n' + nonce.encode() + b'{\"int\": \"3\"}\\n')\nos._exit(0)",
        "import os\nos.closerange(0, 60)\ndef f(x): return x + 1",
        "def f(x): return [1, 2, 3, 4, 5, 6]", "def f(x): return True",
        "import os\nos.kill(os.getppid(), 9)\ndef f(x): return 3",
        "import os\nos.kill(-1, 9)\ndef f(x): return 3",
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"}) {
    EXPECT_EQ(Score(*verifier, source, row).score, 0) << source;
    const Verdict honest = Score(*verifier, "def f(x): return x + 1", row);
    EXPECT_EQ(honest.score, 1) << honest.reason << " after " << source;
  }
}

TEST_F(RunCodeServerTest, WhatAProgramPrintsBesideItsResultDoesNotMatter) {
  const auto verifier = Make({{"extract", "whole"}});
  const json row = {{"answer", {"assert f(2) == 3"}}};
  EXPECT_EQ(
      Score(*verifier, "print('hello')\ndef f(x):\n  print(x, end='')\n  return x + 1", row).reason,
      "right");
}

TEST_F(RunCodeServerTest, TheInputOfACallMayBeAsLargeAsThatOfAProgram) {
  const auto verifier = Make({{"extract", "whole"}});
  const std::string text(7 << 20, 'x');
  const json row = {{"answer", {{"fn_name", "f"}, {"inputs", {{text}}}, {"outputs", {7 << 20}}}}};
  EXPECT_EQ(Score(*verifier, "def f(text): return len(text)", row).reason, "right");
}

TEST_F(RunCodeServerTest, MoreProgramsThanSandboxesAreAllScoredInTime) {
  const auto verifier = Make({{"extract", "whole"}});
  const json row = {{"answer", {{"inputs", {"1\n"}}, {"outputs", {"1\n"}}}}};
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      if (Score(*verifier, "print(input())", row).score == 1) ++right;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 16);
}

TEST_F(RunCodeServerTest, AServerThatStopsInTheMiddleIsAFault) {
  Handed<int> begun;
  std::thread stopper([&] {
    begun.Pop();
    service_->Stop();
    server_->Stop();
  });
  const auto run = MakeRunCode(client_.get(), {}, std::make_shared<rpc::Cancel>());
  const CodeTask task{.source = "print(1)", .inputs = {{}, {}, {}, {}}};
  // After the first test the server goes away; the others have no report.
  int reports = 0;
  const auto outcome = run(task, [&](size_t, const TestReport&) {
    if (++reports == 1) {
      begun.Push(1);
      stopper.join();
    }
    return true;
  });
  EXPECT_EQ(reports, 1);
  EXPECT_TRUE(absl::IsUnavailable(outcome.status()) || absl::IsResourceExhausted(outcome.status()))
      << outcome.status();
}

TEST_F(RunCodeServerTest, OnlyRequestsOfAProgramAreAnswered) {
  const auto answer = [&](const char* method, const char* path, const std::string& body) {
    return service_->Answer({.method = method, .path = path, .body = body});
  };
  EXPECT_EQ(answer("POST", "/", "{}").status, 404);
  EXPECT_EQ(answer("GET", "/run_code", "").status, 405);
  const HttpAnswer refused = answer("POST", "/run_code", R"({"language": "go", "code": ""})");
  EXPECT_EQ(refused.status, 422);
  EXPECT_THAT(refused.body, HasSubstr("wanted: python or cpp"));
  EXPECT_EQ(answer("POST", "/run_code",
                   R"({"language": "python", "code": "", "memory_limit_MB": 1000000})")
                .status,
            422);
  // As others ask.
  const HttpAnswer ran =
      answer("POST", "/run_code", R"json({"language": "python", "code": "print(6 * 7)"})json");
  EXPECT_EQ(ran.status, 200);
  const json reply = json::parse(ran.body);
  EXPECT_EQ(reply["status"], "Success");
  EXPECT_EQ(reply["run_result"]["stdout"], "42\n");
  EXPECT_EQ(reply["run_result"]["return_code"], 0);
  service_->Stop();
  EXPECT_EQ(answer("POST", "/run_code", R"({"language": "python", "code": ""})").status, 503);
}

}  // namespace
}  // namespace sluice::run_code
