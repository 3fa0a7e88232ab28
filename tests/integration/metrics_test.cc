#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"
#include "tests/integration/metrics_page.h"

namespace sluice::integration {
namespace {

void CheckDaemons(const Cluster& cluster, bool works) {
  for (const std::string& id : cluster.ids())
    CheckMetrics(ReadMetrics(cluster.ops(id)), id.substr(0, id.find('-')), works);
}

TEST(MetricsTest, EachDaemonExportsWhatTheTableSaysAtRestAndWithAJob) {
  Cluster cluster({.tls = true});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  CheckDaemons(cluster, /*works=*/false);

  const auto job = SubmitDigits(&cluster, 1000000, {"limits.wall=30m"});
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_EQ((*job)->AwaitStep(5, kLong), absl::OkStatus());
  CheckDaemons(cluster, /*works=*/true);

  for (const auto& [id, metric] : {std::pair{"queue-0", "sluice_queue_acceptance_ratio"},
                                   {"queue-0", "sluice_queue_length_bias_ratio"},
                                   {"queue-0", "sluice_disk_free_bytes"},
                                   {"controller-0", "sluice_disk_free_bytes"},
                                   {"trainer-0", "sluice_disk_free_bytes"},
                                   {"controller-0", "sluice_rpc_client_duration_seconds"},
                                   {"rollout-0", "sluice_rpc_client_duration_seconds"},
                                   {"reward-0", "sluice_rpc_client_duration_seconds"},
                                   {"trainer-0", "sluice_rpc_client_duration_seconds"},
                                   {"reward-0", "sluice_rpc_certificate_expiry_timestamp_seconds"}})
    EXPECT_TRUE(ReadMetrics(cluster.ops(id)).metrics.contains(metric)) << id << ": " << metric;
}

}  // namespace
}  // namespace sluice::integration
