// A job whose answers a model judges over HTTP. The judge is a server of this test.
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file.h"
#include "tests/common/judges/judge_server.h"
#include "tests/integration/faults.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

namespace sluice::integration {
namespace {

class JudgeTest : public testing::Test {
 protected:
  // Starts a fleet that has `server` as the judge "strict", with more keys in its row.
  void StartFleet(const JudgeServer& server, const std::string& keys = "") {
    const char* const tmp = std::getenv("TMPDIR");
    file_ = absl::StrCat(tmp != nullptr ? tmp : "/tmp", "/sluice-judges-", getpid(), ".yaml");
    ASSERT_EQ(WriteFileAtomic(file_, absl::StrCat("judges:\n- {name: strict, model: m, url: \"",
                                                  server.url(), "\"", keys, "}\n")),
              absl::OkStatus());
    cluster_ =
        std::make_unique<Cluster>(ClusterOptions{.args = {{"reward-0", {"--judges", file_}}}});
    ASSERT_EQ(cluster_->Start(), absl::OkStatus());
  }
  void TearDown() override { (void)RemoveTree(file_); }

  absl::StatusOr<std::unique_ptr<Job>> SubmitJudged(int steps, const std::string& judge) {
    return SubmitDigits(
        cluster_.get(), steps,
        {absl::StrCat("reward.rewards=[{name: quality, verifier: judge, timeout: 30s, tries: 8, "
                      "args: {judge: ",
                      judge, ", template: rubric, rubric: \"Is it reversed?\", high: 4}}]")});
  }

  std::string file_;
  std::unique_ptr<Cluster> cluster_;
};

// Between 0 and 4, and the same for the same answer.
JudgeServer::Reply Grade(const JudgeServer::Call& call) {
  const std::string text = call.body["messages"][1]["content"];
  return JudgeServer::Says(absl::StrCat("I see. {\"score\": ", text.size() % 5, "}"));
}

TEST_F(JudgeTest, AJobTrainsOnWhatItsJudgeSaysAndItsFaultsLoseNoAnswer) {
  std::atomic<int> calls = 0;
  JudgeServer server([&](const JudgeServer::Call& call) -> JudgeServer::Reply {
    switch (++calls) {
      case 3: return {.status = 500, .body = "out of order"};
      case 7:
      case 8: return {.status = 429, .headers = {{"Retry-After", "1"}}};
      case 11: return {.body = "<html>"};
      default: return Grade(call);
    }
  });
  ASSERT_NO_FATAL_FAILURE(StartFleet(server));
  const auto job = SubmitJudged(/*steps=*/3, "strict");
  ASSERT_EQ(job.status(), absl::OkStatus());
  const auto end = (*job)->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus()) << Text(*end);
  EXPECT_GE(calls, 3 * 4 * 4);
  for (const job::v1::StepReport& report : (*job)->reports()) {
    const double mean = report.values().at("reward_mean");
    EXPECT_GE(mean, 0);
    EXPECT_LE(mean, 1);
  }
}

TEST_F(JudgeTest, TheExampleTrainsOnTheGradesOfItsJudge) {
  std::atomic<int> calls = 0;
  JudgeServer server([&](const JudgeServer::Call& call) {
    ++calls;
    return JudgeServer::Says(absl::StrCat(
        "{\"score\": ", call.body["messages"][1]["content"].get<std::string>().size() % 11, "}"));
  });
  ASSERT_NO_FATAL_FAILURE(StartFleet(server));
  const auto job = Job::Submit(cluster_.get(), SLUICE_SOURCE_DIR "/configs/examples/judge.yaml",
                               {"limits.max_steps=2", "queue.groups_per_step=4",
                                absl::StrCat("checkpoint.dir=", cluster_->dir(), "/checkpoints")});
  ASSERT_EQ(job.status(), absl::OkStatus());
  const auto end = (*job)->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_GE(calls, 2 * 4 * 4);
}

// Grades the steps of an answer, each by its place.
JudgeServer::Reply GradeSteps(const JudgeServer::Call& call) {
  const std::string system = call.body["messages"][0]["content"];
  const size_t number = system.find("It has ");
  const int steps = number == std::string::npos ? 0 : std::atoi(system.c_str() + number + 7);
  std::vector<int> scores;
  for (int i = 0; i < steps; ++i) scores.push_back(10 / (i + 1));
  return JudgeServer::Says(absl::StrCat("{\"scores\": [", absl::StrJoin(scores, ", "), "]}"));
}

TEST_F(JudgeTest, AJobTrainsOnRewardsOfTheStepsOfItsAnswersAndOnTheTimesOfItsTurns) {
  std::atomic<int> calls = 0, steps = 0;
  JudgeServer server([&](const JudgeServer::Call& call) -> JudgeServer::Reply {
    if (++calls == 5) return JudgeServer::Says("{\"scores\": []}");
    const JudgeServer::Reply reply = GradeSteps(call);
    if (absl::StrContains(reply.body, ", ")) ++steps;
    return reply;
  });
  ASSERT_NO_FATAL_FAILURE(StartFleet(server));
  // The digits model, but its token 9 is a blank line: answers of random weights have steps.
  const std::string model = absl::StrCat(cluster_->dir(), "/steps");
  ASSERT_EQ(MakeDirs(model), absl::OkStatus());
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    const auto text = ReadFile(absl::StrCat(SLUICE_SOURCE_DIR, "/configs/examples/digits/", name));
    ASSERT_EQ(text.status(), absl::OkStatus());
    nlohmann::json json = nlohmann::json::parse(*text);
    if (json.contains("model")) {
      nlohmann::json& vocab = json["model"]["vocab"];
      vocab["\n\n"] = vocab["9"];
      vocab.erase("9");
    }
    ASSERT_EQ(WriteFileAtomic(absl::StrCat(model, "/", name), json.dump()), absl::OkStatus());
  }

  const auto job = SubmitDigits(
      cluster_.get(), /*steps=*/3,
      {absl::StrCat("model.init.config=", model), "algorithm.advantage.kind=reinforce_pp",
       "algorithm.advantage.duration_aware=true",
       "reward.rewards=[{name: steps, verifier: judge, timeout: 30s, tries: 8, args: {judge: "
       "strict, template: prm}}, {name: any, verifier: text, weight: 0.5, args: {property: "
       "reversed}}]"});
  ASSERT_EQ(job.status(), absl::OkStatus());
  const auto end = (*job)->AwaitEnd(kLong);
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus()) << Text(*end);
  EXPECT_GT(steps, 0);

  double rewarded = 0;
  for (const job::v1::StepReport& report : (*job)->reports()) {
    rewarded += report.values().at("rewarded_tokens");
    EXPECT_GT(report.values().at("turn_seconds"), 0);
    EXPECT_GE(report.values().at("reward_mean"), 0);
  }
  // Three steps of 16 answers, of which some have several steps.
  EXPECT_GT(rewarded, 3 * 16 / 2);
}

TEST_F(JudgeTest, AJobWhoseJudgeHasNoBudgetLeftWaitsAndSaysSo) {
  JudgeServer server(Grade);  // Each reply uses 10 tokens.
  ASSERT_NO_FATAL_FAILURE(StartFleet(server, ", tokens: 25"));
  const auto job = SubmitJudged(/*steps=*/3, "strict");
  ASSERT_EQ(job.status(), absl::OkStatus());
  const auto why = [&] {
    const auto said = cluster_->Sluice({"why", (*job)->id()});
    return said.ok() ? said->out : std::string(said.status().message());
  };
  const absl::Time until = absl::Now() + kLong;
  while (!absl::StrContains(why(), "tokens; the operator's limit is 25"))
    ASSERT_LT(absl::Now(), until) << why();
}

}  // namespace
}  // namespace sluice::integration
