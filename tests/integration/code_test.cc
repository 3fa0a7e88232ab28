#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "common/run_code/service.h"
#include "common/sandbox/sandbox.h"
#include "common/testing/data.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

namespace sluice::integration {
namespace {

class CodeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto launcher = sandbox::Launcher::Make({});
    if (!launcher.ok()) GTEST_SKIP() << launcher.status();
    tier_ = (*launcher)->tier();
    ASSERT_EQ(cluster_.Start(), absl::OkStatus());
  }
  // Submits the example. The model writes no fences, so whole answers are run.
  absl::StatusOr<std::unique_ptr<Job>> Submit(const std::string& set) {
    return Job::Submit(&cluster_, SLUICE_SOURCE_DIR "/configs/examples/code.yaml",
                       {absl::StrCat("model.path=", testing_data::Path("models/qwen3-tiny")),
                        "reward.rewards.0.args={extract: whole, score: fraction}", set,
                        absl::StrCat("checkpoint.dir=", cluster_.dir(), "/checkpoints")});
  }

  Cluster cluster_;
  sandbox::Tier tier_ = sandbox::Tier::kUnsafe;
};

TEST_F(CodeTest, TheExampleTrainsOnProgramsThatRanInSandboxes) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny/model.safetensors");
  const auto job = Submit(absl::StrCat("reward.sandbox.tier=", std::string(NameOf(tier_))));
  ASSERT_EQ(job.status(), absl::OkStatus());
  const auto end = (*job)->AwaitEnd(absl::Minutes(3));
  ASSERT_EQ(end.status(), absl::OkStatus());
  ASSERT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(end->result().steps(), 3);
  // No sandbox failed: every answer was scored.
  EXPECT_EQ(end->result().ledger().dropped().at("unscorable"), 0) << Text(*end);
}

TEST_F(CodeTest, AJobFailsAloudWhereItsTierDoesNotWork) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny/model.safetensors");
  const bool t1 = tier_ == sandbox::Tier::kNamespaces;
  const auto job = Submit(absl::StrCat("reward.sandbox.tier=", t1 ? "T1b" : "T1"));
  ASSERT_EQ(job.status(), absl::OkStatus());
  const auto end = (*job)->AwaitEnd(absl::Minutes(3));
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_FAILED) << Text(*end);
  EXPECT_THAT(end->message(), ::testing::HasSubstr("reward.sandbox.tier is"));
}

// Programs that run in the sandboxes of a server of this process.
class CodeServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto sandboxes = sandbox::CodeSandboxes::Make({.runs = 2});
    if (!sandboxes.ok()) GTEST_SKIP() << sandboxes.status();
    sandboxes_ = *std::move(sandboxes);
    service_ = std::make_unique<run_code::Service>(sandboxes_.get());
    server_ = *run_code::HttpServer::Start(
        {}, [this](const run_code::HttpRequest& request) { return Answer(request); });
    cluster_ = std::make_unique<Cluster>(
        ClusterOptions{.args = {{"reward-0", {"--code-server", "http://" + server_->address()}}}});
    ASSERT_EQ(cluster_->Start(), absl::OkStatus());
  }
  // Each kind of fault once in a while: none is the fault of an answer.
  run_code::HttpAnswer Answer(const run_code::HttpRequest& request) {
    switch (++calls_ % 10) {
      case 3: return {.status = 500, .body = "out of order"};
      case 5: return {.status = 429, .body = "{}"};
      case 7: return {.body = run_code::FailureJson("no space left")};
      case 9: return {.body = R"({"status": "Success", "run_result": {}})"};
      default: return service_->Answer(request);
    }
  }

  std::unique_ptr<sandbox::CodeSandboxes> sandboxes_;
  std::unique_ptr<run_code::Service> service_;
  std::unique_ptr<run_code::HttpServer> server_;
  std::unique_ptr<Cluster> cluster_;
  std::atomic<int> calls_ = 0;
};

TEST_F(CodeServerTest, AJobTrainsOnProgramsThatRanElsewhereAndFaultsThereLoseNoAnswer) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny/model.safetensors");
  const auto job = Job::Submit(
      cluster_.get(), SLUICE_SOURCE_DIR "/configs/examples/code.yaml",
      {absl::StrCat("model.path=", testing_data::Path("models/qwen3-tiny")),
       "reward.rewards.0.args={extract: whole}", "reward.rewards.0.tries=20",
       "reward.sandbox.tier=T2", absl::StrCat("checkpoint.dir=", cluster_->dir(), "/checkpoints")});
  ASSERT_EQ(job.status(), absl::OkStatus());
  const auto end = (*job)->AwaitEnd(absl::Minutes(3));
  ASSERT_EQ(end.status(), absl::OkStatus());
  ASSERT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(end->result().ledger().dropped().at("unscorable"), 0) << Text(*end);
  EXPECT_GE(calls_, 10) << "too few for a fault of each kind";
}

}  // namespace
}  // namespace sluice::integration
