#include "services/controller/core/assign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"

namespace sluice::controller {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

JobView MakeJob(const std::string& id, int64_t order, Count rollouts, Count rewards = {1, 4}) {
  JobView job;
  job.id = id;
  job.order = order;
  job.needs.trainers = {1, 1};
  job.needs.rollouts = rollouts;
  job.needs.rewards = rewards;
  return job;
}

DaemonView Up(const std::string& id, Role role) { return {id, role, true, true}; }

std::vector<DaemonView> MakeFleet(int trainers, int rollouts, int rewards) {
  std::vector<DaemonView> fleet = {Up("queue-0", Role::kQueue)};
  for (int i = 0; i < trainers; ++i)
    fleet.push_back(Up(absl::StrCat("trainer-", i), Role::kTrainer));
  for (int i = 0; i < rollouts; ++i)
    fleet.push_back(Up(absl::StrCat("rollout-", i), Role::kRollout));
  for (int i = 0; i < rewards; ++i) fleet.push_back(Up(absl::StrCat("reward-", i), Role::kReward));
  return fleet;
}

TEST(AssignTest, AJobGetsItsMinimumAndThenTheSurplusUpToItsMaximum) {
  const auto plan = Assign({MakeJob("a", 0, {1, 2})}, MakeFleet(2, 3, 1));
  EXPECT_EQ(plan.at("a").queue, "queue-0");
  EXPECT_THAT(plan.at("a").trainers, ElementsAre("trainer-0"));
  EXPECT_THAT(plan.at("a").rollouts, ElementsAre("rollout-0", "rollout-1"));
  EXPECT_THAT(plan.at("a").rewards, ElementsAre("reward-0"));
  EXPECT_EQ(plan.at("a").lacks, "");
}

TEST(AssignTest, AWaitingJobThatLacksSomethingHoldsNothingAndSaysWhat) {
  const auto plan = Assign({MakeJob("a", 0, {2, 2})}, MakeFleet(0, 1, 1));
  EXPECT_THAT(plan.at("a").rollouts, IsEmpty());
  EXPECT_EQ(plan.at("a").queue, "");
  EXPECT_THAT(plan.at("a").lacks, HasSubstr("1 of 1 trainer"));
  EXPECT_THAT(plan.at("a").lacks, HasSubstr("1 of 2 rollouts"));
}

TEST(AssignTest, TheMinimumOfTheSecondJobComesBeforeTheSurplusOfTheFirst) {
  const auto plan = Assign({MakeJob("a", 0, {1, 4}), MakeJob("b", 1, {1, 4})}, MakeFleet(2, 3, 1));
  EXPECT_THAT(plan.at("a").rollouts, ElementsAre("rollout-0", "rollout-2"));
  EXPECT_THAT(plan.at("b").rollouts, ElementsAre("rollout-1"));
  // Rewards and queues serve many jobs.
  EXPECT_THAT(plan.at("b").rewards, ElementsAre("reward-0"));
}

TEST(AssignTest, PriorityComesBeforeTheOrderOfSubmit) {
  JobView urgent = MakeJob("b", 1, {1, 1});
  urgent.needs.priority = 5;
  const auto plan = Assign({MakeJob("a", 0, {1, 1}), urgent}, MakeFleet(1, 1, 1));
  EXPECT_THAT(plan.at("b").trainers, ElementsAre("trainer-0"));
  EXPECT_THAT(plan.at("a").trainers, IsEmpty());
}

TEST(AssignTest, ARunningJobIsNotPreemptedAndIsRepairedBeforeAnotherStarts) {
  JobView running = MakeJob("a", 1, {1, 1});
  running.started = true;
  running.queue = "queue-0";
  running.held = {"rollout-0", "reward-0"};  // Its trainer is gone.
  JobView urgent = MakeJob("b", 0, {1, 1});
  urgent.needs.priority = 100;

  const auto plan = Assign({urgent, running}, MakeFleet(1, 2, 1));
  EXPECT_THAT(plan.at("a").trainers, ElementsAre("trainer-0"));
  EXPECT_THAT(plan.at("a").rollouts, ElementsAre("rollout-0"));
  EXPECT_THAT(plan.at("b").trainers, IsEmpty());
}

TEST(AssignTest, ASuspectDaemonIsKeptAndGetsNoNewWork) {
  std::vector<DaemonView> fleet = MakeFleet(1, 1, 1);
  fleet[2].usable = false;  // That is rollout-0.
  EXPECT_THAT(Assign({MakeJob("a", 0, {1, 1})}, fleet).at("a").lacks, HasSubstr("rollout"));

  JobView held = MakeJob("a", 0, {1, 1});
  held.started = true;
  held.held = {"rollout-0"};
  EXPECT_THAT(Assign({held}, fleet).at("a").rollouts, ElementsAre("rollout-0"));
}

TEST(AssignTest, AnEndingJobKeepsWhatItHasAndGetsNothing) {
  JobView ending = MakeJob("a", 0, {1, 4});
  ending.started = ending.ending = true;
  ending.queue = "queue-0";
  ending.held = {"rollout-0"};

  const auto plan = Assign({ending}, MakeFleet(1, 3, 1));
  EXPECT_THAT(plan.at("a").rollouts, ElementsAre("rollout-0"));
  EXPECT_THAT(plan.at("a").trainers, IsEmpty());
}

// Random jobs and a random fleet. Each plan is applied before daemons come and go again.
class AssignProperty : public testing::TestWithParam<uint64_t> {};

TEST_P(AssignProperty, NoDaemonIsDoubledMinimaComeFirstAndTheAnswerIsAFunctionOfTheViews) {
  SplitMix64 random(GetParam());
  std::vector<DaemonView> daemons;
  for (int i = 0; i < 14; ++i) {
    daemons.push_back(Up(absl::StrCat("d", i), kRoles[random.Below(4)]));
  }

  std::vector<JobView> jobs;
  for (int i = 0; i < 5; ++i) {
    const int min = 1 + static_cast<int>(random.Below(2));
    jobs.push_back(
        MakeJob(absl::StrCat("j", i), i, {min, min + static_cast<int>(random.Below(3))}, {1, 2}));
    jobs.back().needs.priority = static_cast<int>(random.Below(3));
  }

  for (int round = 0; round < 20; ++round) {
    for (DaemonView& daemon : daemons) {
      daemon.present = random.Below(6) != 0;
      daemon.usable = daemon.present && random.Below(6) != 0;
    }
    const std::map<std::string, JobStaff> plan = Assign(jobs, daemons);

    std::vector<JobView> shuffled_jobs = jobs;
    std::vector<DaemonView> shuffled_daemons = daemons;
    for (size_t i = shuffled_jobs.size(); i > 1; --i)
      std::swap(shuffled_jobs[i - 1], shuffled_jobs[random.Below(i)]);
    for (size_t i = shuffled_daemons.size(); i > 1; --i)
      std::swap(shuffled_daemons[i - 1], shuffled_daemons[random.Below(i)]);
    const std::map<std::string, JobStaff> again = Assign(shuffled_jobs, shuffled_daemons);

    std::set<std::string> exclusive;
    bool surplus_above_minimum = false, minimum_missing = false;
    for (JobView& job : jobs) {
      const JobStaff& staff = plan.at(job.id);
      EXPECT_EQ(staff.rollouts, again.at(job.id).rollouts);
      EXPECT_EQ(staff.trainers, again.at(job.id).trainers);
      EXPECT_EQ(staff.rewards, again.at(job.id).rewards);
      EXPECT_EQ(staff.queue, again.at(job.id).queue);

      for (const auto* list : {&staff.trainers, &staff.rollouts}) {
        for (const std::string& id : *list)
          EXPECT_TRUE(exclusive.insert(id).second) << id << " has two jobs";
      }
      EXPECT_LE(static_cast<int>(staff.rollouts.size()), job.needs.rollouts.max);
      EXPECT_LE(static_cast<int>(staff.rewards.size()), job.needs.rewards.max);

      if (!job.started && !staff.lacks.empty()) {
        EXPECT_TRUE(staff.trainers.empty() && staff.rollouts.empty() && staff.rewards.empty())
            << "part of a minimum is held";
      }
      if (job.started && static_cast<int>(staff.rollouts.size()) < job.needs.rollouts.min)
        minimum_missing = true;
      for (const std::string& id : staff.rollouts) {
        const bool fresh = std::find(job.held.begin(), job.held.end(), id) == job.held.end();
        if (fresh && static_cast<int>(staff.rollouts.size()) > job.needs.rollouts.min)
          surplus_above_minimum = true;
      }
    }

    EXPECT_FALSE(surplus_above_minimum && minimum_missing)
        << "surplus was handed out while a started job lacks its minimum";

    for (JobView& job : jobs) {
      const JobStaff& staff = plan.at(job.id);
      if (!job.started && !staff.lacks.empty()) continue;
      job.started = true;
      job.queue = staff.queue;
      job.held = staff.trainers;
      job.held.insert(job.held.end(), staff.rollouts.begin(), staff.rollouts.end());
      job.held.insert(job.held.end(), staff.rewards.begin(), staff.rewards.end());
    }
    const std::map<std::string, JobStaff> applied = Assign(jobs, daemons);
    for (const JobView& job : jobs) {
      if (!job.started) continue;
      EXPECT_EQ(applied.at(job.id).rollouts, plan.at(job.id).rollouts)
          << "applying a plan changes the next";
      EXPECT_EQ(applied.at(job.id).trainers, plan.at(job.id).trainers);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, AssignProperty, testing::Range<uint64_t>(1, 40));

}  // namespace
}  // namespace sluice::controller
