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

}  // namespace
}  // namespace sluice::integration
