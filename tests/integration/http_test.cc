// The HTTP API of a rollout daemon whose job trains meanwhile.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/checkpoint/model_dir.h"
#include "common/judges/judge_client.h"
#include "tests/common/models/adapter_files.h"
#include "tests/integration/faults.h"
#include "tests/services/rollout/http/client.h"

namespace sluice::integration {
namespace {

using rollout::http::Client;
using rollout::http::PostText;

constexpr char kKey[] = "a-key-for-this-test-alone";
constexpr char kPath[] = "/v1/completions";
constexpr char kTemplate[] =
    "{% for m in messages %}{{ m.content }}{% if m.role == 'user' %}={% endif %}{% endfor %}";

class HttpTest : public FaultsTest {
 protected:
  void SetUp() override {
    const char* const tmp = std::getenv("TMPDIR");
    std::string dir = absl::StrCat(tmp != nullptr ? tmp : "/tmp", "/sluice-http-XXXXXX");
    ASSERT_NE(mkdtemp(dir.data()), nullptr);
    dir_ = dir;
    ASSERT_EQ(WriteFileAtomic(dir + "/template.jinja", kTemplate), absl::OkStatus());
    ASSERT_EQ(WriteFileAtomic(dir + "/keys", absl::StrCat("test ", kKey, "\n")), absl::OkStatus());
    ASSERT_EQ(chmod((dir + "/keys").c_str(), 0600), 0);

    const auto model = ReadModelDir(SLUICE_SOURCE_DIR "/configs/examples/digits");
    ASSERT_EQ(model.status(), absl::OkStatus());
    WriteAdapter(dir + "/extra", AdapterConfig(4, 64, kAllAdapterModules),
                 AdapterTensors(model->config, 4, kAllAdapterModules, 1));

    StartJob({.env = {{"SLUICE_HTTP", "127.0.0.1:0"},
                      {"SLUICE_HTTP_KEYS", dir + "/keys"},
                      {"SLUICE_HTTP_ADAPTERS",
                       absl::StrCat("extra=", dir, "/extra,gone=", dir, "/gone")}}},
             {absl::StrCat("model.chat_template=", dir, "/template.jinja")});
    ASSERT_EQ(job_->AwaitStep(2, kLong), absl::OkStatus());
    address_ = HttpAddress();
  }

  void TearDown() override { (void)RemoveTree(dir_); }

  std::string HttpAddress() const {
    for (absl::string_view line : absl::StrSplit(cluster_->Log("rollout-0"), '\n')) {
      const size_t at = line.find("\"address\":\"");
      if (at == absl::string_view::npos || !absl::StrContains(line, "http_listening")) continue;
      return std::string(line.substr(at + 11, line.find('"', at + 11) - at - 11));
    }
    ADD_FAILURE() << "rollout-0 has no HTTP API\n" << cluster_->Log("rollout-0");
    return "127.0.0.1:1";
  }

  static std::string Bearer() { return absl::StrCat("Authorization: Bearer ", kKey, "\r\n"); }
  static std::string Body(bool stream) {
    return absl::StrCat(
        R"({"model": "digits", "prompt": "4821=", "max_tokens": 6, "ignore_eos": true, "stream": )",
        stream ? "true" : "false", "}");
  }

  // A metric of rollout-0, summed over its labels.
  double Metric(const std::string& name) {
    Client client(cluster_->ops("rollout-0"));
    client.Send("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    double sum = 0;
    for (absl::string_view line : absl::StrSplit(client.Rest(), '\n')) {
      double value = 0;
      if (absl::StartsWith(line, name) &&
          absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value))
        sum += value;
    }
    return sum;
  }

  // Waits until no answer of the API is being sampled.
  void AwaitNoAnswers() {
    const absl::Duration until = Clock::Real()->Monotonic() + kLong;
    while (Metric("sluice_rollout_api_answers") > 0)
      ASSERT_LT(Clock::Real()->Monotonic(), until) << "answers are left behind";
  }

  std::string dir_, address_;
};

TEST_F(HttpTest, ThePublicOpenAiClientWorksUnchanged) {
  const std::string packages = SLUICE_SOURCE_DIR "/.deps/openai";
  const auto there = RunToEnd({.binary = "/bin/sh",
                               .args = {"-c", "python3 -c 'import openai'"},
                               .env = {{"PYTHONPATH", packages}},
                               .log = dir_ + "/import.err"},
                              kLong);
  ASSERT_EQ(there.status(), absl::OkStatus());
  if (there->exit != 0)
    GTEST_SKIP() << "no Python package openai in " << packages << "; tools/test.sh installs it";

  const auto ran = RunToEnd({.binary = "/bin/sh",
                             .args = {"-c", absl::StrCat("exec python3 '" SLUICE_SOURCE_DIR
                                                         "/tests/integration/openai_client.py' ",
                                                         address_, " ", kKey)},
                             .env = {{"PYTHONPATH", packages}},
                             .log = dir_ + "/client.err"},
                            kLong);
  ASSERT_EQ(ran.status(), absl::OkStatus());
  EXPECT_EQ(ran->exit, 0) << ran->out << ran->err;

  AwaitNoAnswers();
  RecordFault();
  ExpectGoesOn();
}

TEST_F(HttpTest, AJudgeMayBeARolloutDaemon) {
  JudgeClient judge({.name = "own",
                     .url = absl::StrCat("http://", address_, "/v1/chat/completions"),
                     .model = "digits",
                     .key = Secret(std::string(kKey)),
                     .max_reply = 4});
  // This model writes digits and not grades. How many it writes depends on the version.
  const absl::StatusOr<std::string> reply = judge.Ask("", "4821", kLong, rpc::Cancel());
  EXPECT_TRUE(reply.ok() || absl::StrContains(reply.status().message(), "longer than max_reply"))
      << reply.status();
  JudgeClient stranger({.name = "own",
                        .url = absl::StrCat("http://", address_, "/v1/chat/completions"),
                        .model = "digits"});
  const absl::Status refused = stranger.Ask("", "4821", kLong, rpc::Cancel()).status();
  EXPECT_TRUE(absl::StrContains(refused.message(), "HTTP status 401")) << refused;
}

TEST_F(HttpTest, AnAdapterIsAModelBesideTheJobsAndOneThatCannotBeReadIsNot) {
  Client client(address_);
  ASSERT_TRUE(client.Send(
      absl::StrCat("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n", Bearer(), "\r\n")));

  const std::string models = client.Until("]}");
  EXPECT_TRUE(absl::StrContains(models, "\"digits\"") &&
              absl::StrContains(models, "\"digits:extra\"") && !absl::StrContains(models, "gone"))
      << models;
  EXPECT_TRUE(absl::StrContains(cluster_->Log("rollout-0"), "adapter_refused"));

  const auto ask = [&](const std::string& name) {
    EXPECT_TRUE(client.Send(PostText(
        kPath,
        absl::StrCat(
            R"({"model": ")", name,
            R"(", "prompt": "4821=", "max_tokens": 6, "temperature": 0, "ignore_eos": true, )"
            R"("echo": true, "logprobs": 0})"),
        Bearer())));

    const std::string answer = client.Until("\"usage\"");
    (void)client.Until("}}");
    EXPECT_TRUE(absl::StrContains(answer, "200 OK")) << answer;
    const size_t at = answer.find("\"token_logprobs\"");
    return at == std::string::npos ? answer : answer.substr(at, answer.find(']', at) - at);
  };

  const std::string plain = ask("digits"), extra = ask("digits:extra");
  EXPECT_TRUE(absl::StrContains(plain, "[null,")) << plain;
  EXPECT_NE(plain, extra);

  AwaitNoAnswers();
  RecordFault();
  ExpectGoesOn();
}

TEST_F(HttpTest, AThousandStreamsRunBesideTheJob) {
  constexpr int kStreams = 1000;
  std::vector<Client> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back(address_);
    ASSERT_TRUE(clients.back().Send(PostText(kPath, Body(true), Bearer())));
  }
  for (Client& client : clients)
    ASSERT_TRUE(absl::EndsWith(client.Until("[DONE]\n\n"), "[DONE]\n\n"));

  AwaitNoAnswers();
  RecordFault();
  ExpectGoesOn();
}

TEST_F(HttpTest, HostileClientsLeaveNoRequestAndNoMemoryBehind) {
  const auto storm = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      std::vector<Client> clients;
      for (int c = 0; c < 12; ++c) clients.emplace_back(address_);

      // These leave at once.
      for (int c = 0; c < 4; ++c) clients[c].Send(PostText(kPath, Body(c % 2 == 0), Bearer()));
      // This one leaves in the middle of its request.
      clients[4].Send(PostText(kPath, Body(true), Bearer()).substr(0, 150));
      // These have no key, or a wrong one.
      clients[5].Send(PostText(kPath, Body(true)));
      clients[6].Send(
          PostText(kPath, Body(true), "Authorization: Bearer not-the-key-of-anybody\r\n"));

      // The others send broken JSON, too many tokens, no HTTP, a long head, or too long a body.
      clients[7].Send(PostText(kPath, std::string(200, '['), Bearer()));
      clients[8].Send(
          PostText(kPath, R"({"model": "digits", "prompt": "1=", "max_tokens": 99999})", Bearer()));
      clients[9].Send("\xff\xfe\xfd no HTTP \r\n\r\n");
      clients[10].Send(absl::StrCat("GET /v1/models HTTP/1.1\r\nX: ", std::string(20 << 10, 'x')));
      clients[11].Send(absl::StrCat(
          "POST ", kPath,
          " HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 99999999\r\n", Bearer(),
          "\r\n"));

      EXPECT_TRUE(absl::StrContains(clients[5].Until("\r\n"), "401"));
      EXPECT_TRUE(absl::StrContains(clients[6].Until("\r\n"), "401"));
      EXPECT_TRUE(absl::StrContains(clients[7].Until("\r\n"), "400"));
      EXPECT_TRUE(absl::StrContains(clients[8].Until("\r\n"), "400"));
      EXPECT_TRUE(absl::StrContains(clients[9].Until("\r\n"), "400"));
      EXPECT_TRUE(absl::StrContains(clients[11].Until("\r\n"), "413"));
    }
  };
  storm(40);
  AwaitNoAnswers();

  [[maybe_unused]] const double before = Metric("process_resident_memory_bytes");
  storm(160);
  AwaitNoAnswers();
#ifndef SLUICE_SANITIZED  // AddressSanitizer keeps what is freed.
  EXPECT_LT(Metric("process_resident_memory_bytes"), before + (32 << 20));
#endif
  Client client(address_);
  ASSERT_TRUE(client.Send(PostText(kPath, Body(false), Bearer())));
  EXPECT_TRUE(absl::StrContains(client.Until("}}"), "\"finish_reason\":\"length\""));

  RecordFault();
  ExpectGoesOn();
}

TEST_F(HttpTest, ADrainEndsStreamsOrTellsThem) {
  Client client(address_);
  ASSERT_TRUE(client.Send(PostText(kPath, Body(true), Bearer())));
  EXPECT_TRUE(absl::StrContains(client.Until("data: "), "200 OK"));
  const auto exit = cluster_->Terminate("rollout-0", kLong);
  ASSERT_EQ(exit.status(), absl::OkStatus());
  EXPECT_EQ(*exit, 0) << cluster_->Log("rollout-0");

  const std::string rest = client.Rest();
  EXPECT_TRUE(absl::StrContains(rest, "[DONE]") || absl::StrContains(rest, "\"error\"")) << rest;
}

}  // namespace
}  // namespace sluice::integration
