// A job whose answers a model judges over HTTP. The judge is a server of this test.
#include <gtest/gtest.h>

#include <atomic>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
