#include <gtest/gtest.h>

#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

namespace sluice::integration {
namespace {

TEST(LoopTest, AJobRunsToItsEndAndItsBooksBalance) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());

  const auto job = SubmitDigits(&cluster, /*steps=*/3);
  ASSERT_EQ(job.status(), absl::OkStatus());

  const auto end = (*job)->AwaitEnd(absl::Minutes(1));
  ASSERT_EQ(end.status(), absl::OkStatus());
  EXPECT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(end->result().steps(), 3);
  EXPECT_EQ(CheckBooks(*end), absl::OkStatus());
}

}  // namespace
}  // namespace sluice::integration
