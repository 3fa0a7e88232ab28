#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

// For the tests in which daemons die while a job runs. Each test proves that the fault came
// in the middle of the job, with at least kStepsAfter steps after it. If the fault comes at once,
// the job has an end and must reach it. If a timeout must pass first, the job is endless, so that
// it cannot be over too early on a fast machine, and the test cancels it.
namespace sluice::integration {

inline constexpr int kSteps = 150;
inline constexpr int kEndless = 1'000'000;  // Steps.
inline constexpr int64_t kBefore = 5;       // Steps between faults, and before the first.
// Steps after the last fault: more than the job could do with what was sampled ahead of it.
inline constexpr int64_t kStepsAfter = 20;

class FaultsTest : public testing::Test {
 protected:
  void StartJob(ClusterOptions options = {}, std::vector<std::string> sets = {},
                int steps = kEndless) {
    cluster_ = std::make_unique<Cluster>(options);
    ASSERT_EQ(cluster_->Start(), absl::OkStatus());
    steps_ = steps;
    auto job = SubmitDigits(cluster_.get(), steps, std::move(sets));
    ASSERT_EQ(job.status(), absl::OkStatus());
    job_ = *std::move(job);
  }

  // Notes the step and the time of a fault that has just happened.
  void RecordFault() {
    fault_step_ = job_->steps();
    fault_time_ = absl::Now();
  }

  // Kills the daemon with SIGKILL, kBefore steps after the last fault, and starts it again.
  void KillAndRestart(const std::string& id) {
    ASSERT_EQ(job_->AwaitStep(fault_step_ + kBefore, kLong), absl::OkStatus());
    ASSERT_EQ(cluster_->Kill(id), absl::OkStatus());
    RecordFault();
    ASSERT_EQ(cluster_->Start(id), absl::OkStatus());
  }

  // Arms a failpoint, which kills the daemon at its nth hit from now, and starts the daemon again.
  void KillAt(const std::string& id, const std::string& failpoint, int nth) {
    ASSERT_EQ(job_->AwaitStep(fault_step_ + kBefore, kLong), absl::OkStatus());
    ASSERT_EQ(cluster_->Arm(id, failpoint, "kill", nth), absl::OkStatus());
    ASSERT_EQ(cluster_->AwaitKilled(id, kLong), absl::OkStatus());
    RecordFault();
    ASSERT_EQ(cluster_->Start(id), absl::OkStatus());
  }

  // The job goes on after the last fault, to its end or until it is cancelled, and its ledger
  // balances. `gave_up_durable_steps`: see CheckLedgerBalances().
  job::v1::JobStatus ExpectGoesOn(bool gave_up_durable_steps = false) {
    EXPECT_EQ(job_->AwaitStep(fault_step_ + kStepsAfter, kLong), absl::OkStatus());
    if (steps_ == kEndless) {
      // Steps from before the fault may be reported after it, and prove nothing.
      EXPECT_EQ(job_->AwaitStepsSince(fault_time_, kStepsAfter, kLong), absl::OkStatus());
      const auto said = cluster_->Sluice({"job", "cancel", job_->id()});
      EXPECT_TRUE(said.ok() && said->exit == 0)
          << (said.ok() ? said->err : said.status().ToString());
    }

    const auto end = job_->AwaitEnd(kLong);
    EXPECT_EQ(end.status(), absl::OkStatus());
    if (!end.ok()) return {};
    EXPECT_EQ(end->state(),
              steps_ == kEndless ? job::v1::JOB_STATE_CANCELLED : job::v1::JOB_STATE_SUCCEEDED)
        << Text(*end);
    EXPECT_EQ(CheckLedgerBalances(*end, gave_up_durable_steps), absl::OkStatus());
    EXPECT_GE(end->result().steps(), fault_step_ + kStepsAfter);
    return *end;
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Job> job_;
  int64_t steps_ = 0, fault_step_ = 0;
  absl::Time fault_time_ = absl::InfinitePast();
};

}  // namespace sluice::integration
