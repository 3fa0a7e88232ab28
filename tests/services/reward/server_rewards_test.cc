// Rewards of a job that a server gives, which changes, goes away and comes back while the job runs.
#include <gmock/gmock.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "services/reward/job_rewards.h"
#include "tests/common/handed.h"
#include "tests/common/plugins/folder.h"
#include "tests/common/plugins/scripted_server.h"

namespace sluice::reward {
namespace {

using testing::HasSubstr;

// Its scores of the answer "version_as_score" are its version.
class ServerRewardsTest : public testing::Test {
 protected:
  ~ServerRewardsTest() override {
    if (rewards_ != nullptr) rewards_->Stop();
    StopServer();
  }

  void SetVersion(const std::string& version) {
    version_file_ = WritePlugin("server_rewards/version", version);
  }
  void StartServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("unix:", socket_), grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void StopServer() {
    if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now()));
    server_ = nullptr;
  }

  job::v1::RewardEntry& AddServer(const std::string& name, const std::string& reload = "auto") {
    job::v1::RewardEntry& entry = *options_.reward.add_rewards();
    entry.set_name(name);
    entry.set_verifier("plugin");
    entry.set_weight(1);
    entry.mutable_timeout()->set_seconds(10);
    auto& args = *entry.mutable_args()->mutable_fields();
    args["grpc"].set_string_value("scripted");
    args["reload"].set_string_value(reload);
    (*args["config"].mutable_struct_value()->mutable_fields())["version_file"].set_string_value(
        version_file_);
    return entry;
  }

  void Start() {
    servers_ = *ReadPluginServers(
        WritePlugin("server_rewards/servers.yaml",
                    absl::StrCat("servers: [{name: scripted, address: \"unix:", socket_, "\"}]")));
    options_.job_name = "digits";
    options_.servers = &servers_;
    options_.watch_every = absl::Milliseconds(20);
    options_.on_event = [this](common::v1::Severity, const char* code, const std::string& message) {
      events_.Push({code, message});
    };
    auto made = JobRewards::Make(std::move(options_));
    ASSERT_EQ(made.status(), absl::OkStatus());
    rewards_ = *std::move(made);
    rewards_->Follow([this](const std::shared_ptr<const Scorer>& scorer) { used_.Push(scorer); });
    ASSERT_EQ(used_.Pop(), rewards_->scorer());
  }

  static double ScoreWith(const Scorer& scorer) {
    const Score score = scorer.Run({.text = "version_as_score"}, {{"answer", "x"}}, "digits");
    EXPECT_EQ(score.status, "ok") << score.info << score.fault;
    return score.task_reward;
  }

  const std::string socket_ = testing_data::TempPath("rewards.sock");
  std::string version_file_;
  ScriptedServer service_;
  std::unique_ptr<grpc::Server> server_;
  PluginServers servers_;
  JobRewards::Options options_;
  Handed<std::pair<std::string, std::string>> events_;
  Handed<std::shared_ptr<const Scorer>> used_;
  std::unique_ptr<JobRewards> rewards_;
};

TEST_F(ServerRewardsTest, AnotherVersionBringsANewGenerationAndEndsTheOldOne) {
  SetVersion("0.25");
  StartServer();
  AddServer("mine").mutable_timeout()->set_seconds(1);
  Start();
  const std::shared_ptr<const Scorer> old = rewards_->scorer();
  EXPECT_EQ(ScoreWith(*old), 0.25);
  rewards_->NoteScored(old, {.answers = {{.text = "version_as_score"}},
                             .row = nlohmann::json::object(),
                             .source = "digits",
                             .scores = {{"mine", {RuleScore{.score = 0.25}}}}});

  SetVersion("0.75");
  const std::shared_ptr<const Scorer> fresh = used_.Pop();
  EXPECT_NE(fresh->generation(), old->generation());
  EXPECT_NE(fresh->versions().at("mine"), old->versions().at("mine"));
  EXPECT_EQ(ScoreWith(*fresh), 0.75);
  const auto [code, message] = events_.Pop();
  EXPECT_EQ(code, "reward_reloaded");
  EXPECT_THAT(message, HasSubstr("of 1 answers 0 have the same score, 1 a higher"));

  // The old version is gone: its next score is none, and then its groups are scored again whole.
  while (rewards_->CanScore(old->generation())) {
    const Score score = old->Run({.text = "version_as_score"}, {{"answer", "x"}}, "digits");
    EXPECT_FALSE(score.fault.ok()) << score.task_reward;
  }
}

TEST_F(ServerRewardsTest, AServerThatStartsAgainAsItWasGoesOnAndAsAnotherVersionIsLoaded) {
  SetVersion("0.25");
  StartServer();
  AddServer("mine");
  Start();
  const std::shared_ptr<const Scorer> first = rewards_->scorer();
  ASSERT_EQ(ScoreWith(*first), 0.25);
  StopServer();
  StartServer();
  EXPECT_EQ(ScoreWith(*first), 0.25);
  EXPECT_EQ(rewards_->scorer(), first);

  StopServer();
  SetVersion("0.5");
  StartServer();
  EXPECT_EQ(ScoreWith(*used_.Pop()), 0.5);
}

TEST_F(ServerRewardsTest, AVersionThatFailsItsSelfTestChangesNothingAndSaysSo) {
  SetVersion("0.25");
  StartServer();
  AddServer("mine");
  Start();
  const std::shared_ptr<const Scorer> old = rewards_->scorer();
  ASSERT_EQ(ScoreWith(*old), 0.25);
  SetVersion("broken");
  const auto [code, message] = events_.Pop();
  EXPECT_EQ(code, "reward_reload_failed");
  EXPECT_THAT(message, HasSubstr("its self-test 1 gave -1; wanted: 1"));
  EXPECT_EQ(rewards_->scorer(), old);

  SetVersion("0.25");
  EXPECT_EQ(ScoreWith(*old), 0.25);
  EXPECT_EQ(rewards_->scorer()->generation(), old->generation());
}

TEST_F(ServerRewardsTest, WithReloadManualAPersonAsksForTheNewVersion) {
  SetVersion("0.25");
  StartServer();
  AddServer("mine", "manual");
  Start();
  Handed<absl::StatusOr<v1::ReloadResponse>> answered;
  const auto reload = [&] {
    rewards_->Reload("mine", [&](auto answer) { answered.Push(std::move(answer)); });
    return answered.Pop();
  };
  EXPECT_EQ(reload()->rewards(0).outcome(), v1::RELOAD_OUTCOME_UNCHANGED);
  SetVersion("0.75");
  const auto loaded = reload();
  ASSERT_EQ(loaded.status(), absl::OkStatus());
  EXPECT_EQ(loaded->rewards(0).outcome(), v1::RELOAD_OUTCOME_LOADED);
  EXPECT_EQ(loaded->generation(), rewards_->scorer()->generation());
  EXPECT_EQ(ScoreWith(*rewards_->scorer()), 0.75);
}

// A candidate may not hold up the job, even if its server is not there yet.
TEST_F(ServerRewardsTest, ACandidateIsComparedOnceItsServerIsThere) {
  job::v1::RewardEntry& right = *options_.reward.add_rewards();
  right.set_name("right");
  right.set_verifier("exact");
  right.set_weight(1);
  SetVersion("1");
  AddServer("new").set_shadow("right");
  Start();
  EXPECT_EQ(*rewards_->Capacity(7), 7u);
  const auto [broken, why] = events_.Pop();
  EXPECT_EQ(broken, "shadow_broken");
  EXPECT_THAT(why,
              HasSubstr("candidate new is not compared until plug-in server scripted answers"));

  StartServer();
  const auto [loaded, message] = events_.Pop();
  EXPECT_EQ(loaded, "reward_reloaded") << message;
  v1::DescribeResponse described;
  while (described.rewards_size() == 0 || described.rewards(1).shadow().equal() == 0) {
    rewards_->NoteScored(rewards_->scorer(), {.answers = {{.text = "version_as_score"}},
                                              .row = nlohmann::json::object(),
                                              .source = "digits",
                                              .scores = {{"right", {RuleScore{.score = 1}}}}});
    described.Clear();
    rewards_->Describe(&described);
  }
  EXPECT_EQ(described.rewards(1).shadow().of(), "right");
}

}  // namespace
}  // namespace sluice::reward
