#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

// What the tests share in which daemons die while a job runs. Each is a witness: it saw its fault
// in the middle of the job, and at least kStepsAfter steps behind it. Where the fault comes at once
// the job has an end, and must get there; where a timeout must pass first it has none of its own,
// so that it is not over before on a machine however fast: the test ends it.
namespace sluice::integration {

inline constexpr int kSteps = 150;
inline constexpr int kEndless = 1'000'000;  // Steps.
inline constexpr int64_t kBefore = 5;       // Steps between faults, and before the first.
// And after the last; more than what is generated ahead would do without the dead one.
inline constexpr int64_t kStepsAfter = 20;
inline constexpr absl::Duration kLong = absl::Minutes(2);

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

  // The fault has just happened: remembers where.
  void Happened() {
    fault_step_ = job_->steps();
    fault_time_ = absl::Now();
  }

  // kill -9 once the job has done `after` steps more, and starts the daemon again.
  void KillAndRestart(const std::string& id) {
    ASSERT_EQ(job_->AwaitStep(fault_step_ + kBefore, kLong), absl::OkStatus());
    ASSERT_EQ(cluster_->Kill(id), absl::OkStatus());
    Happened();
    ASSERT_EQ(cluster_->Start(id), absl::OkStatus());
  }

  // A failpoint kills the daemon at its nth hit from now; it is started again.
  void KillAt(const std::string& id, const std::string& failpoint, int nth) {
    ASSERT_EQ(job_->AwaitStep(fault_step_ + kBefore, kLong), absl::OkStatus());
    ASSERT_EQ(cluster_->Arm(id, failpoint, "kill", nth), absl::OkStatus());
    ASSERT_EQ(cluster_->AwaitKilled(id, kLong), absl::OkStatus());
    Happened();
    ASSERT_EQ(cluster_->Start(id), absl::OkStatus());
  }

  // The job goes on behind the last fault, to its end or until it is ended, and its books balance.
  job::v1::JobStatus ExpectGoesOn(bool went_behind = false) {
    EXPECT_EQ(job_->AwaitStep(fault_step_ + kStepsAfter, kLong), absl::OkStatus());
    if (steps_ == kEndless) {
      // Steps of before the fault may be told behind it, and say nothing of what came after.
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
    EXPECT_EQ(CheckBooks(*end, went_behind), absl::OkStatus());
    EXPECT_GE(end->result().steps(), fault_step_ + kStepsAfter);
    return *end;
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Job> job_;
  int64_t steps_ = 0, fault_step_ = 0;
  absl::Time fault_time_ = absl::InfinitePast();
};

}  // namespace sluice::integration
