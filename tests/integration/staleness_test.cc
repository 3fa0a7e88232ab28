#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

namespace sluice::integration {
namespace {

// The parameter is max_staleness.
class StalenessTest : public testing::TestWithParam<int> {};

TEST_P(StalenessTest, NoTrainedTokenIsOlderThanTheBound) {
  const int bound = GetParam();
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = SubmitDigits(&cluster, 20, {absl::StrCat("queue.max_staleness=", bound)});
  ASSERT_EQ(job.status(), absl::OkStatus());

  const auto end = (*job)->AwaitEnd(absl::Minutes(2));
  ASSERT_EQ(end.status(), absl::OkStatus());
  ASSERT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());

  int64_t tokens = 0, old = 0;
  for (const auto& [staleness, count] : end->result().staleness_histogram()) {
    int versions = -1;
    ASSERT_TRUE(absl::SimpleAtoi(staleness, &versions)) << staleness;
    EXPECT_TRUE(count == 0 || versions <= bound) << versions;
    tokens += count;
    if (versions >= 2) old += count;
  }

  EXPECT_EQ(tokens, end->result().tokens_trained());
  EXPECT_LE(end->result().staleness_max(), bound);
  EXPECT_TRUE(bound < 4 || old > 0) << "the rollout never ran ahead: " << Text(*end);

  // The CLI shows the same: `job describe` has the histogram, `queue fsck` the ledger.
  const auto described = cluster.Sluice({"job", "describe", (*job)->id(), "-o", "json"});
  ASSERT_EQ(described.status(), absl::OkStatus());
  ASSERT_EQ(described->exit, 0) << described->err;
  const nlohmann::json result = nlohmann::json::parse(described->out).at("result");
  EXPECT_EQ(result.at("staleness_histogram").size(),
            static_cast<size_t>(end->result().staleness_histogram_size()));

  const auto fsck = cluster.Sluice({"queue", "fsck", (*job)->id()});
  ASSERT_EQ(fsck.status(), absl::OkStatus());
  EXPECT_EQ(fsck->exit, 0) << fsck->out << fsck->err;
}

INSTANTIATE_TEST_SUITE_P(Bound, StalenessTest, testing::Values(0, 1, 4),
                         testing::PrintToStringParamName());

// The parameter is weights.inflight. Answers are long, and few run at once, so that versions come
// while they run.
class InflightTest : public testing::TestWithParam<const char*> {};

TEST_P(InflightTest, AnswersThatFinishAreOfOneVersionAndThoseThatSwitchOfSeveral) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  // Without a checkpoint the queue keeps all groups until the end.
  const auto job =
      SubmitDigits(&cluster, 1'000'000,
                   {absl::StrCat("weights.inflight=", GetParam()), "queue.max_staleness=2",
                    "checkpoint.every_steps=1000", "model.max_context=64",
                    "rollout.max_response=50", "rollout.engine.max_running=6"});
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(25, absl::Minutes(3)), absl::OkStatus());

  const auto peeked = cluster.Sluice({"queue", "peek", (*job)->id(), "-o", "json"});
  ASSERT_EQ(peeked.status(), absl::OkStatus());
  ASSERT_EQ(peeked->exit, 0) << peeked->err;
  int answers = 0, of_several = 0;
  const nlohmann::json rows = nlohmann::json::parse(peeked->out);
  for (const nlohmann::json& group : rows.at("groups")) {
    for (const nlohmann::json& member : group.at("json").at("members")) {
      if (!member.contains("versions")) continue;
      ++answers;
      of_several += member.at("versions").at(0) != member.at("versions").at(1);
    }
  }
  EXPECT_GT(answers, 200);
  if (absl::string_view(GetParam()) == "finish") {
    EXPECT_EQ(of_several, 0);
  } else {
    EXPECT_GT(of_several, 0);
  }

  const auto cancelled = cluster.Sluice({"job", "cancel", (*job)->id()});
  ASSERT_TRUE(cancelled.ok() && cancelled->exit == 0);
  const auto end = (*job)->AwaitEnd(absl::Minutes(3));
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_CANCELLED) << Text(*end);
  EXPECT_LE(end->result().staleness_max(), 2);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(Inflight, InflightTest, testing::Values("finish", "switch"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace sluice::integration
