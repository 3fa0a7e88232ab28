#include "common/run_code/protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace sluice::run_code {
namespace {

using testing::HasSubstr;

TEST(RunCodeProtocol, ARequestComesBackAsItWas) {
  const Request request{.cpp = true,
                        .code = "int main() {}\n\xE2\x82\xAC",
                        .input = "1 2\n",
                        .compile_timeout = absl::Seconds(30),
                        .run_timeout = absl::Seconds(2.5),
                        .cpu_timeout = absl::Seconds(1),
                        .memory_bytes = 512ull << 20};
  const auto read = ParseRequest(ToJson(request));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->cpp);
  EXPECT_EQ(read->code, request.code);
  EXPECT_EQ(read->input, request.input);
  EXPECT_EQ(read->compile_timeout, request.compile_timeout);
  EXPECT_EQ(read->run_timeout, request.run_timeout);
  EXPECT_EQ(read->cpu_timeout, request.cpu_timeout);
  EXPECT_EQ(read->memory_bytes, request.memory_bytes);
}

// As SandboxFusion's own clients send it, with nulls and defaults.
TEST(RunCodeProtocol, ARequestOfSandboxFusionIsRead) {
  const auto read = ParseRequest(
      R"json({"compile_timeout": 10, "run_timeout": 10, "memory_limit_MB": -1, "code": "print(1)",
          "stdin": null, "language": "python", "files": {}, "fetch_files": [], "args": []})json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->code, "print(1)");
  EXPECT_EQ(read->input, "");
  EXPECT_EQ(read->memory_bytes, std::nullopt);
  EXPECT_EQ(read->cpu_timeout, absl::InfiniteDuration());
}

TEST(RunCodeProtocol, WhatARequestAsksForInVainIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no JSON object"},
      {"[1]", "no JSON object"},
      {R"({"code": "x"})", "language is \"\""},
      {R"({"language": "go", "code": "x"})", "language is \"go\"; wanted: python or cpp"},
      {R"({"language": "python"})", "there is no code"},
      {R"({"language": "python", "code": 1})", "code is 1; wanted: a text"},
      {R"({"language": "python", "code": "", "run_timeout": 0})", "run_timeout is 0"},
      {R"({"language": "python", "code": "", "run_timeout": 1e9})", "run_timeout is 1000000000"},
      {R"({"language": "python", "code": "", "memory_limit_MB": 1})", "memory_limit_MB is 1"},
      {R"({"language": "python", "code": "", "files": {"a": "eA=="}})", "files is"},
      {R"({"language": "python", "code": "", "fetch_files": ["a"]})", "fetch_files is"},
  };
  for (const auto& [json, why] : cases) {
    const auto read = ParseRequest(json);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(read.status().message(), HasSubstr(why)) << json;
  }
  EXPECT_FALSE(ParseRequest(std::string(100'000, '[')).ok());
}

TEST(RunCodeProtocol, ARunAndItsCompilerComeBackAsTheyWere) {
  Reply reply;
  reply.compiled = Ran{.code = 0, .err = "a warning"};
  reply.ran = Ran{.code = -9, .time = absl::Seconds(1.5), .out = "1\n", .err = "killed"};
  const auto read = ParseReply(ToJson(reply));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->compiled->err, "a warning");
  EXPECT_EQ(read->ran->code, -9);
  EXPECT_EQ(read->ran->time, absl::Seconds(1.5));
  EXPECT_EQ(read->ran->out, "1\n");
  EXPECT_EQ(read->ran->err, "killed");

  const auto late =
      ParseReply(ToJson(Reply{.compiled = std::nullopt, .ran = Ran{.timed_out = true}}));
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_TRUE(late->ran->timed_out);
}

TEST(RunCodeProtocol, AReplyThatIsNotByTheRulesIsAFaultOfTheServer) {
  const auto run = [](const char* result) {
    return absl::StrCat(R"({"status": "Success", "message": "", "run_result": )", result, "}");
  };
  const std::string cases[] = {
      "",
      "null",
      "<html>502</html>",
      R"({"status": "Success"})",
      R"({"status": "SandboxError", "message": "no space left"})",
      R"({"status": 1, "run_result": {"status": "Finished", "return_code": 0}})",
      R"({"status": "Running", "run_result": {"status": "Finished", "return_code": 0}})",
      run("[]"),
      run("{}"),
      run(R"({"status": "Error", "stderr": "exec failed"})"),
      run(R"({"status": "Finished"})"),
      run(R"({"status": "Finished", "return_code": null})"),
      run(R"({"status": "Finished", "return_code": 0.5})"),
      run(R"({"status": "Finished", "return_code": "0"})"),
      run(R"({"status": "Finished", "return_code": 0, "stdout": 1})"),
      // These contradict themselves.
      run(R"({"status": "Finished", "return_code": 1})"),
      run(R"({"status": "TimeLimitExceeded"})"),
      R"({"status": "Failed", "run_result": {"status": "Finished", "return_code": 0}})",
      R"({"status": "Success", "compile_result": {"status": "Finished", "return_code": 0}})",
      FailureJson("the sandbox has ended"),
      std::string(100'000, '['),
  };
  for (const std::string& json : cases)
    EXPECT_EQ(ParseReply(json).status().code(), absl::StatusCode::kUnavailable) << json;
}

}  // namespace
}  // namespace sluice::run_code
