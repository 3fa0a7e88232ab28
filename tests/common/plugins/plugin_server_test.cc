// What only servers can do: restart, change in place, and be on another machine.
#include "common/plugins/plugin_server.h"

#include <gmock/gmock.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/pki/certificate.h"
#include "tests/common/plugins/scripted_plugin.h"
#include "tests/common/plugins/scripted_server.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class PluginServerTest : public ScriptedPluginTest {
 protected:
  PluginServerTest() : ScriptedPluginTest(PluginKind::kServer) {}
};

TEST_F(PluginServerTest, NumbersThatAreNotFiniteAreErrors) {
  StartHost();
  for (const char* const number : {"nan", "inf", "-inf"}) {
    EXPECT_TRUE(std::isnan(ScoreOf(absl::StrCat("score ", number))));
    EXPECT_EQ(error_, absl::StrCat("its score is ", number, ", a number; wanted: a finite number"));
  }
  EXPECT_EQ(host_->starts(), 1u);
}

// Nothing that it has scored as another version counts, even once.
TEST_F(PluginServerTest, AServerThatChangesInPlaceIsNoticedByItsNextAnswer) {
  StartHost();
  ASSERT_EQ(ScoreOf("score 1"), 1);
  WriteVersion("2");
  const auto results = Score({"score 1"}, absl::Seconds(3));
  EXPECT_EQ(ReasonOf(results.status()), "PLUGIN_DOWN") << results.status();
  EXPECT_THAT(std::string(results.status().message()),
              HasSubstr("plug-in server scripted has changed since the job began, from test 1 to "
                        "test 2"));
}

TEST_F(PluginServerTest, AServerThatIsAwayIsWaitedForAndCostsNoAnswerItsScore) {
  StartHost();
  ASSERT_EQ(ScoreOf("score 1"), 1);
  const std::string socket = testing_data::TempPath("plugin.sock");
  kill(-server_.pid, SIGKILL);
  const auto results = Score({"score 1"}, absl::Seconds(1));
  EXPECT_EQ(ReasonOf(results.status()), "PLUGIN_DOWN") << results.status();
  EXPECT_THAT(std::string(results.status().message()), HasSubstr("it cannot be reached"));
  EXPECT_EQ(ReasonOf(host_->Capacity().status()), "PLUGIN_DOWN");
  EXPECT_EQ(host_->broken(), absl::OkStatus());

  const auto again =
      StartChild({.argv = {SLUICE_BIN_DIR "/scripted_server", socket}, .stderr_path = ""});
  ASSERT_EQ(again.status(), absl::OkStatus());
  server_ = *again;
  EXPECT_EQ(ScoreOf("score 0.5"), 0.5);
}

TEST_F(PluginServerTest, AServerThatGoesAgainAndAgainCostsNoAnswerItsTries) {
  StartHost();
  const auto results = Score({"leave"});
  EXPECT_TRUE(absl::IsResourceExhausted(results.status())) << results.status();
  EXPECT_EQ(ReasonOf(results.status()), "PLUGIN_DOWN");
  EXPECT_THAT(std::string(results.status().message()),
              HasSubstr("its server has ended the stream"));
  EXPECT_EQ(ScoreOf("score 1"), 1);
}

// What ends its connection now and then is no poison, as long as it gets its scores.
TEST_F(PluginServerTest, AnAnswerThatIsScoredHasNoStrikes) {
  StartHost();
  for (int i = 0; i < 4; ++i) {
    const std::string file = WritePlugin("strike", "x");
    EXPECT_EQ(ScoreOf(absl::StrCat("kill_if ", file)), 1) << error_;
  }
}

TEST_F(PluginServerTest, AnAnswerThatEndsItsServerIsFoundAmongOthers) {
  StartHost({{"in_flight", 8}});
  std::atomic<int> wrong = 0, scored = 0;
  std::atomic<bool> stop = false;
  std::vector<std::thread> others;
  for (int t = 0; t < 4; ++t) {
    others.emplace_back([&, t] {
      while (!stop) {
        const auto results = Score({absl::StrCat("score ", t)});
        // While others end it again and again, an answer may be given back.
        if (absl::IsResourceExhausted(results.status())) continue;
        if (results.ok() && (*results)[0].score == t) ++scored;
        else ++wrong;
      }
    });
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(std::isnan(ScoreOf(absl::StrCat("kill ", i))));
    EXPECT_EQ(reason_, "poison");
  }
  stop = true;
  for (std::thread& thread : others) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(scored, 0);
}

TEST_F(PluginServerTest, AServerThatGoesDuringItsSelfTestIsNotBroken) {
  PluginHost::Options options;
  options.first_tries = 1;
  StartHost({{"test", absl::StrCat("kill_once ", Mark("test"))}}, nlohmann::json::object(),
            options);
  EXPECT_EQ(host_->AwaitStart(absl::Minutes(1)), absl::OkStatus());
  EXPECT_GE(host_->starts(), 2u);
}

TEST_F(PluginServerTest, AnAnswerLargerThanItsServerTakesIsUnscorableAndHarmsNobody) {
  const std::string address = absl::StrCat("unix:", testing_data::TempPath("small.sock"));
  ScriptedServer service;
  grpc::ServerBuilder builder;  // It takes 4 MiB.
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const PluginServers servers = *ReadPluginServers(WritePlugin(
      "small.yaml", absl::StrCat("servers: [{name: small, address: \"", address, "\"}]")));
  auto host = PluginHost::Make(
      {.job = "digits",
       .name = "mine",
       .spec = *ParsePluginSpec({{"grpc", "small"}, {"config", {{"in_flight", 4}}}}),
       .servers = &servers});
  ASSERT_EQ(host.status(), absl::OkStatus());
  host_ = *std::move(host);
  EXPECT_TRUE(std::isnan(ScoreOf("score 1." + std::string(5 << 20, '0'))));
  EXPECT_EQ(reason_, "too_large");
  EXPECT_THAT(error_, HasSubstr("have it take 16777216"));
  EXPECT_EQ(ScoreOf("score 1"), 1);
  host_ = nullptr;
  server->Shutdown(absl::ToChronoTime(absl::Now()));
}

TEST_F(PluginServerTest, AServerThatDoesNotRunAndOneThatNobodyNamesAreTold) {
  const std::string file =
      WritePlugin("servers.yaml", "servers: [{name: scripted, address: \"unix:/no/such.sock\"}]");
  servers_ = *ReadPluginServers(file);
  PluginHost::Options options{.spec = *ParsePluginSpec({{"grpc", "scripted"}}),
                              .servers = &servers_,
                              .connect_timeout = absl::Milliseconds(200)};
  absl::Status status = PluginHost::Make(options).status();
  EXPECT_EQ(ReasonOf(status), "PLUGIN_UNREACHABLE");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("plug-in server scripted at unix:/no/such.sock: it cannot be reached"));

  options.spec = *ParsePluginSpec({{"grpc", "other"}});
  status = PluginHost::Make(options).status();
  EXPECT_EQ(ReasonOf(status), "NO_PLUGIN_SERVER");
  EXPECT_THAT(std::string(status.message()), HasSubstr("the servers are: scripted"));
}

// The example, for people who have the package. ---------------------------------------------------

TEST(PluginServerExampleTest, TheServerInPythonScoresAnswers) {
  if (std::system("python3 -c 'import grpc_tools' 2>/dev/null") != 0)
    GTEST_SKIP() << "python3 has no package grpcio-tools";
  const std::string address = absl::StrCat("unix:", testing_data::TempPath("example.sock"));
  const auto child = StartChild(
      {.argv = {"/usr/bin/env", "python3",
                SLUICE_SOURCE_DIR "/configs/examples/rewards/reversed_server.py", address},
       .stderr_path = ""});
  ASSERT_EQ(child.status(), absl::OkStatus());
  const auto kill_it = absl::MakeCleanup([&] { kill(-child->pid, SIGKILL); });
  const PluginServers servers = *ReadPluginServers(WritePlugin(
      "example.yaml", absl::StrCat("servers: [{name: reversed, address: \"", address, "\"}]")));
  const auto host = PluginHost::Make({.job = "digits",
                                      .name = "mine",
                                      .spec = *ParsePluginSpec({{"grpc", "reversed"}}),
                                      .servers = &servers,
                                      .connect_timeout = absl::Minutes(1)});
  ASSERT_EQ(host.status(), absl::OkStatus());
  const nlohmann::json half = {{"completion", "41"}, {"ground_truth", "15"}},
                       none = {{"completion", "41"}};
  const auto results = (*host)->Score({half, none}, absl::Seconds(30));
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ((*results)[0].score, 0.5);
  EXPECT_EQ((*results)[0].parts.at("acc"), 0);
  EXPECT_THAT((*results)[1].error, HasSubstr("Error"));
  EXPECT_FALSE((*results)[1].score.has_value());
}

// Certificates. -----------------------------------------------------------------------------------

class PluginServerTlsTest : public testing::Test {
 protected:
  PluginServerTlsTest() {
    const pki::Validity valid{absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(1)};
    authority_ = *pki::MakeAuthority({.name = "authority", .uri = "test://plugins"}, valid);
    const pki::KeyPair server = *pki::IssueCertificate(
        authority_, {.name = "server", .uri = "test://plugins", .hosts = {"localhost"}}, valid);
    const pki::KeyPair client =
        *pki::IssueCertificate(authority_, {.name = "reward", .uri = "test://plugins"}, valid);
    WritePlugin("tls/ca.pem", authority_.certificate);
    WritePlugin("tls/other.pem",
                pki::MakeAuthority({.name = "other", .uri = "test://plugins"}, valid)->certificate);
    WritePlugin("tls/cert.pem", client.certificate);
    chmod(WritePlugin("tls/key.pem", std::string(client.key.Reveal())).c_str(), 0600);

    grpc::SslServerCredentialsOptions tls(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    tls.pem_root_certs = authority_.certificate;
    tls.pem_key_cert_pairs = {{std::string(server.key.Reveal()), server.certificate}};
    grpc::ServerBuilder builder;
    builder.AddListeningPort("localhost:0", grpc::SslServerCredentials(tls), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~PluginServerTlsTest() override { server_->Shutdown(absl::ToChronoTime(absl::Now())); }

  // Reads a file with one server, with these keys besides its name.
  absl::StatusOr<PluginServers> Read(const std::string& keys) {
    return ReadPluginServers(
        WritePlugin("tls/servers.yaml", absl::StrCat("servers:\n- {name: s, ", keys, "}\n")));
  }

  absl::Status Start(const std::string& host, const std::string& files) {
    const auto servers = Read(absl::StrCat("address: \"", host, ":", port_, "\", ", files));
    if (!servers.ok()) return servers.status();
    const auto made = PluginHost::Make({.job = "digits",
                                        .name = "mine",
                                        .spec = *ParsePluginSpec({{"grpc", "s"}}),
                                        .servers = &*servers,
                                        .version_timeout = absl::Seconds(2)});
    return made.ok() ? (*made)->AwaitStart(absl::Seconds(30)) : made.status();
  }

  pki::KeyPair authority_;
  ScriptedServer service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(PluginServerTlsTest, BothSidesProveWhoTheyAre) {
  const std::string client = "cert_file: cert.pem, key_file: key.pem";
  EXPECT_EQ(Start("localhost", "ca_file: ca.pem, " + client), absl::OkStatus());
  for (const auto& [host, files] :
       {std::pair<std::string, std::string>{"localhost", "ca_file: ca.pem"},
        {"localhost", "ca_file: other.pem, " + client},
        {"127.0.0.1", "ca_file: ca.pem, " + client}}) {
    EXPECT_TRUE(absl::IsUnavailable(Start(host, files))) << host << " " << files;
  }
}

TEST_F(PluginServerTlsTest, WhatIsInsecureOrIncompleteIsRefusedByName) {
  chmod(WritePlugin("tls/open.pem", "x").c_str(), 0644);
  chmod(WritePlugin("tls/group.pem", "x").c_str(), 0620);
  const std::pair<std::string, std::string> cases[] = {
      {"address: \"10.0.0.7:7600\"",
       "servers.0 (s): address is 10.0.0.7:7600, which is another machine, and without ca_file"},
      {"address: \"grader.example.com:7600\"", "without ca_file answers and scores would cross"},
      {"address: \"127.0.0.1.evil.com:7600\"", "which is another machine"},
      {"address: \"unix:relative.sock\"", "wanted: unix:/PATH, or HOST:PORT"},
      {"address: \"unix:/s.sock\", ca_file: ca.pem", "leave ca_file out"},
      {"address: \"dns:///grader\"", "address"},
      {"address: \"localhost:1\", ca_file: ca.pem, cert_file: cert.pem", "belong together"},
      {"address: \"localhost:1\", cert_file: cert.pem, key_file: key.pem", "without ca_file"},
      {"address: \"localhost:1\", ca_file: no.pem", "no.pem"},
      {"address: \"localhost:1\", ca_file: ca.pem, cert_file: cert.pem, key_file: open.pem",
       "can be read by every user"},
      {"address: \"localhost:1\", ca_file: ca.pem, cert_file: cert.pem, key_file: group.pem",
       "or written by its group"},
      {"address: \"unix:/a\"}\n- {name: s, address: \"unix:/b\"", "the name \"s\" is used twice"},
      {"address: \"unix:/a\", port: 1", "unknown key \"port\""},
  };
  for (const auto& [keys, why] : cases) {
    const absl::Status status = Read(keys).status();
    EXPECT_EQ(ReasonOf(status), "BAD_CONFIG") << keys << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why)) << keys;
  }
  for (const char* const address : {"unix:/s.sock", "127.0.0.1:7600", "[::1]:7600"})
    EXPECT_EQ(Read(absl::StrCat("address: \"", address, "\"")).status(), absl::OkStatus());
}

TEST(PluginServersTest, TheExampleCanBeRead) {
  EXPECT_EQ(ReadPluginServers(SLUICE_SOURCE_DIR "/configs/plugin-servers.yaml").status(),
            absl::OkStatus());
}

}  // namespace
}  // namespace sluice
