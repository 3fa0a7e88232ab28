#include "services/controller/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "tests/services/controller/world.h"

namespace sluice::controller {
namespace {

class MetricsTest : public testing::Test {
 protected:
  // The value of a series, given as on the metrics page; -1 if there is no such series.
  double Read(const std::string& series) {
    metrics_.Update(*world_.core, world_.now());
    const std::string text = absl::StrCat("\n", registry_.Text());
    const size_t at = text.find(absl::StrCat("\n", series, " "));
    double value = -1;
    if (at == text.npos) return value;
    const size_t begin = at + series.size() + 2;
    EXPECT_TRUE(absl::SimpleAtod(text.substr(begin, text.find('\n', begin) - begin), &value));
    return value;
  }
  double Lost() { return Read("sluice_controller_daemons{role=\"rollout\",state=\"lost\"}"); }
  double SinceLastStep() {
    return absl::ToUnixSeconds(world_.now().wall) -
           Read("sluice_job_last_step_timestamp_seconds{job_id=\"a\"}");
  }

  World world_;
  metrics::Registry registry_;
  Metrics metrics_{&registry_};
};

TEST_F(MetricsTest, ADeadDaemonCountsAsLostForAnHour) {
  world_.StartFleet();
  world_.Settle();
  EXPECT_EQ(Lost(), 0);

  world_.Kill("rollout-0");
  world_.Pass(absl::Seconds(15));
  EXPECT_EQ(Lost(), 1);

  world_.Pass(absl::Hours(1), absl::Minutes(1));
  EXPECT_EQ(Lost(), 0);
}

TEST_F(MetricsTest, ADaemonThatDrainedAndLeftIsNotLost) {
  world_.StartFleet();
  world_.actors["rollout-0"].draining = true;
  world_.Settle();

  world_.Kill("rollout-0");
  world_.Pass(absl::Seconds(15));

  EXPECT_EQ(Lost(), 0);
}

TEST_F(MetricsTest, ADaemonThatWasGoneBeforeTheControllerStartedIsNotLost) {
  world_.StartFleet();
  world_.Settle();
  world_.Kill("rollout-0");
  world_.Pass(absl::Seconds(15));

  world_.Restart();
  Metrics fresh(&registry_);
  fresh.Update(*world_.core, world_.now());

  EXPECT_EQ(Lost(), 0);
}

TEST_F(MetricsTest, WhatJobsWantIsKnownBeforeAndWhileAndAfterTheyRun) {
  const auto wanted = [&](const char* bound) {
    return Read(absl::StrCat("sluice_controller_wanted_daemons{bound=\"", bound,
                             "\",pool=\"default\",role=\"rollout\"}"));
  };
  world_.StartFleet(0);
  world_.Settle();
  EXPECT_EQ(wanted("min"), 0) << "an autoscaler that reads nothing would change nothing";
  EXPECT_EQ(wanted("max"), 0);

  const std::string job = world_.Submit("a");
  EXPECT_EQ(world_.State(job), JobState::kWaiting);
  EXPECT_EQ(wanted("min"), 1);
  EXPECT_EQ(wanted("max"), 1);

  world_.Start("rollout-0", Role::kRollout);
  world_.AllReady(job);
  EXPECT_EQ(world_.State(job), JobState::kRunning);
  EXPECT_EQ(wanted("min"), 1);
  EXPECT_EQ(wanted("max"), 4);

  ASSERT_TRUE(world_.core->Cancel(world_.now(), job, true).ok());
  for (int i = 0; i < 3; ++i) world_.Leave();
  EXPECT_EQ(world_.State(job), JobState::kCancelled);
  EXPECT_EQ(wanted("min"), 0);
  EXPECT_EQ(wanted("max"), 0);
}

TEST_F(MetricsTest, APoolThatIsGoneWantsNothingAndThereAreNotTooManyOfThem) {
  const auto wanted = [&](const std::string& pool) {
    return Read(absl::StrCat("sluice_controller_wanted_daemons{bound=\"min\",pool=\"", pool,
                             "\",role=\"trainer\"}"));
  };
  world_.StartFleet();
  std::vector<std::string> jobs;
  for (int i = 0; i < 40; ++i) {
    Needs needs = World::DefaultNeeds();
    needs.pool = absl::StrCat("pool-", i);
    // A job without a queue wants nothing.
    world_.Start(absl::StrCat("queue-", i, "-of-pool"), Role::kQueue, needs.pool);
    jobs.push_back(world_.Submit(absl::StrCat("job-", i), needs));
    EXPECT_GE(wanted("default"), 0);
  }
  EXPECT_EQ(wanted("pool-0"), 1);
  EXPECT_EQ(wanted("pool-39"), -1);
  EXPECT_EQ(wanted("other"), 40 - 31);

  world_.Kill("queue-0-of-pool");
  ASSERT_TRUE(world_.core->Cancel(world_.now(), jobs[0], true).ok());
  world_.Pass(absl::Minutes(1), absl::Seconds(10));
  EXPECT_EQ(wanted("pool-0"), 0);
}

// Else the alert SluiceJobNoProgress would fire for each job that has waited in the queue.
TEST_F(MetricsTest, TheTimeSinceTheLastStepBeginsWhenTheJobStarts) {
  world_.Submit("a");
  world_.Pass(absl::Minutes(5), absl::Seconds(10));
  EXPECT_NEAR(SinceLastStep(), 0, 1) << "it waits for daemons";

  world_.StartFleet();
  world_.Settle();
  world_.Pass(absl::Minutes(3), absl::Seconds(2));

  EXPECT_EQ(Read("sluice_job_state{job_id=\"a\",state=\"starting\"}"), 1);
  EXPECT_NEAR(SinceLastStep(), 180, 5) << "it starts";
}

}  // namespace
}  // namespace sluice::controller
