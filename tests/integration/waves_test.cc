// Groups in two waves (rollout.group.first_wave): the same job with and without them.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"
#include "tests/integration/metrics_page.h"

namespace sluice::integration {
namespace {

constexpr int kWaveSteps = 6, kWaveGroups = 4, kWaveMembers = 8;

struct WavesOutcome {
  common::v1::Ledger ledger;
  int64_t saved = 0;
};

// Runs the example with groups of eight to its end. Each step samples its own groups, so that none
// is left over at the end. At first few answers earn anything: rewards of two answers to a prompt
// are often equal, and often not.
void RunWaves(std::vector<std::string> sets, WavesOutcome* outcome) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  sets.insert(sets.end(), {absl::StrCat("rollout.group.size=", kWaveMembers), "rollout.group.min=2",
                           "queue.max_staleness=0"});
  const auto job = SubmitDigits(&cluster, kWaveSteps, sets);
  ASSERT_EQ(job.status(), absl::OkStatus());

  const auto end = (*job)->AwaitEnd(absl::Minutes(1));
  ASSERT_EQ(end.status(), absl::OkStatus());
  ASSERT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
  for (const job::v1::StepReport& report : (*job)->reports())
    EXPECT_TRUE(std::isfinite(report.values().at("grad_norm"))) << report.DebugString();

  outcome->ledger = end->result().ledger();
  outcome->saved = std::llround(SumOf(ReadMetrics(cluster.ops("queue-0")),
                                      "sluice_queue_answers_saved_total", "job_id", "digits"));
}

TEST(WavesTest, AJobWithWavesTrainsAndDrawsFewerAnswers) {
  WavesOutcome all, waves;
  ASSERT_NO_FATAL_FAILURE(RunWaves({}, &all));
  EXPECT_EQ(all.ledger.accepted(), kWaveSteps * kWaveGroups * kWaveMembers);
  EXPECT_EQ(all.saved, 0);

  ASSERT_NO_FATAL_FAILURE(RunWaves({"rollout.group.first_wave=2"}, &waves));
  EXPECT_GT(waves.saved, 0) << "a group whose first two answers earn the same ends with them";
  EXPECT_GT(waves.ledger.accepted(), kWaveSteps * kWaveGroups * 2) << "others go on";
  EXPECT_EQ(waves.ledger.accepted() + waves.saved, all.ledger.accepted());
}

TEST(WavesTest, WithTheFilterAJobTrainsOnWholeGroupsAlone) {
  WavesOutcome waves;
  ASSERT_NO_FATAL_FAILURE(
      RunWaves({"rollout.group.first_wave=2", "algorithm.advantage.group_filter=signal",
                "algorithm.advantage.max_rejected_steps=1000"},
               &waves));
  EXPECT_EQ(waves.ledger.durable() + waves.ledger.applied(),
            kWaveSteps * kWaveGroups * kWaveMembers);
  EXPECT_GT(waves.ledger.dropped().at("filtered"), 0);
  EXPECT_EQ(waves.saved, waves.ledger.dropped().at("filtered") / 2 * (kWaveMembers - 2))
      << "two answers for each prompt without signal";
}

}  // namespace
}  // namespace sluice::integration
