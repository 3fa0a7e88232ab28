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
using ::testing::SizeIs;

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

// The view of a job that has started as `staff` says.
JobView Started(JobView job, const JobStaff& staff) {
  job.started = true;
  job.queue = staff.queue;
  job.held = staff.trainers;
  job.held.insert(job.held.end(), staff.rollouts.begin(), staff.rollouts.end());
  job.held.insert(job.held.end(), staff.rewards.begin(), staff.rewards.end());
  return job;
}

TEST(AssignTest, SurplusIsSharedEquallyAndAJobThatHasMoreGivesSomeBack) {
  const std::vector<DaemonView> fleet = MakeFleet(2, 5, 1);
  JobView a = MakeJob("a", 0, {1, 4});
  a = Started(a, Assign({a}, fleet).at("a"));
  EXPECT_THAT(a.held, SizeIs(6)) << "alone it has a trainer, four rollouts and a reward";

  const JobView b = MakeJob("b", 1, {1, 4});
  const auto plan = Assign({a, b}, fleet);
  EXPECT_THAT(plan.at("b").rollouts, ElementsAre("rollout-4"));
  EXPECT_THAT(plan.at("a").rollouts, ElementsAre("rollout-0", "rollout-1", "rollout-2"));
}

TEST(AssignTest, NoRolloutMovesBetweenJobsWhoseSharesDifferByOne) {
  const std::vector<DaemonView> fleet = MakeFleet(2, 3, 1);
  JobView a = MakeJob("a", 0, {1, 4}), b = MakeJob("b", 1, {1, 4});
  a.started = b.started = true;
  a.queue = b.queue = "queue-0";
  a.held = {"trainer-0", "rollout-0", "reward-0"};
  b.held = {"trainer-1", "rollout-1", "rollout-2", "reward-0"};
  const auto plan = Assign({a, b}, fleet);
  EXPECT_THAT(plan.at("b").rollouts, SizeIs(2)) << "b has them already";
}

TEST(AssignTest, AWaitingJobThatLacksRolloutsAloneGetsThoseThatOthersHaveAboveTheirMinimum) {
  const std::vector<DaemonView> fleet = MakeFleet(2, 3, 1);
  JobView a = MakeJob("a", 0, {1, 4});
  a = Started(a, Assign({a}, fleet).at("a"));
  JobView b = MakeJob("b", 1, {2, 2});

  const auto plan = Assign({a, b}, fleet);
  EXPECT_THAT(plan.at("a").rollouts, ElementsAre("rollout-0"));
  EXPECT_THAT(plan.at("b").lacks, HasSubstr("2 of 2 rollouts, which other jobs are giving back"));

  // Until both have left, those that are free are kept for it.
  a = Started(a, plan.at("a"));
  a.leaving = {"rollout-2"};
  const auto halfway = Assign({a, b}, fleet);
  EXPECT_THAT(halfway.at("a").rollouts, ElementsAre("rollout-0"));
  EXPECT_THAT(halfway.at("b").rollouts, IsEmpty());

  a.leaving.clear();
  EXPECT_THAT(Assign({a, b}, fleet).at("b").rollouts, ElementsAre("rollout-1", "rollout-2"));
}

TEST(AssignTest, AWaitingJobThatLacksATrainerTakesNoRolloutFromOthers) {
  const std::vector<DaemonView> fleet = MakeFleet(1, 3, 1);
  JobView a = MakeJob("a", 0, {1, 4});
  a = Started(a, Assign({a}, fleet).at("a"));
  const auto plan = Assign({a, MakeJob("b", 1, {2, 2})}, fleet);
  EXPECT_THAT(plan.at("a").rollouts, SizeIs(3)) << "they would be of no use to b";
}

TEST(AssignTest, AStartedJobBelowItsMinimumGetsTheSurplusOfAnother) {
  const std::vector<DaemonView> fleet = MakeFleet(2, 3, 1);
  JobView rich = MakeJob("a", 0, {1, 3}), poor = MakeJob("b", 1, {2, 2});
  rich.started = poor.started = true;
  rich.queue = poor.queue = "queue-0";
  rich.held = {"trainer-0", "rollout-0", "rollout-1", "reward-0"};
  poor.held = {"trainer-1", "rollout-2", "reward-0"};
  EXPECT_THAT(Assign({rich, poor}, fleet).at("a").rollouts, ElementsAre("rollout-0"));
}

TEST(AssignTest, AJobWhoseMaximaAreLoweredGivesBackWhatIsAboveThem) {
  const std::vector<DaemonView> fleet = MakeFleet(1, 3, 3);
  JobView job = MakeJob("a", 0, {1, 3});
  job = Started(job, Assign({job}, fleet).at("a"));
  job.needs.rollouts.max = 2;
  job.needs.rewards.max = 1;
  const auto plan = Assign({job}, fleet);
  EXPECT_THAT(plan.at("a").rollouts, ElementsAre("rollout-0", "rollout-1"));
  EXPECT_THAT(plan.at("a").rewards, ElementsAre("reward-0"));
}

TEST(AssignTest, WhatIsFreeIsKeptForALargeJobAndNotGivenToASmallOneThatComesLater) {
  const std::vector<DaemonView> fleet = MakeFleet(3, 3, 1);
  JobView running = MakeJob("a", 0, {1, 1});
  running = Started(running, Assign({running}, fleet).at("a"));
  const JobView large = MakeJob("b", 1, {3, 3}), small = MakeJob("c", 2, {1, 1});
  const auto plan = Assign({running, large, small}, fleet);
  EXPECT_THAT(plan.at("b").lacks, HasSubstr("1 of 3 rollouts"));
  EXPECT_EQ(plan.at("b").waits_for, WaitsFor::kDaemons);
  EXPECT_THAT(plan.at("c").lacks, HasSubstr("1 of 1 rollout"));
  EXPECT_EQ(plan.at("c").waits_for, WaitsFor::kEarlierJob);

  const JobView impossible = MakeJob("b", 1, {4, 4});
  EXPECT_EQ(Assign({running, impossible, small}, fleet).at("c").lacks, "")
      << "nothing is kept for a job that this fleet can never serve";
}

TEST(AssignTest, AJobThatWaitsForLongOvertakesHigherPriorities) {
  JobView old = MakeJob("a", 0, {1, 1}), urgent = MakeJob("b", 1, {1, 1});
  urgent.needs.priority = 5;
  const std::vector<DaemonView> fleet = MakeFleet(1, 1, 1);
  EXPECT_EQ(Assign({old, urgent}, fleet).at("b").lacks, "");
  old.waited = 6 * kAgingStep;
  EXPECT_EQ(Assign({old, urgent}, fleet).at("a").lacks, "");
}

TEST(AssignTest, AJobUsesDaemonsOfItsPoolAlone) {
  std::vector<DaemonView> fleet = MakeFleet(2, 2, 2);
  for (DaemonView& daemon : fleet) {
    if (daemon.id.ends_with("-1")) daemon.pool = "big";
  }
  JobView job = MakeJob("a", 0, {1, 4});
  EXPECT_THAT(Assign({job}, fleet).at("a").rollouts, ElementsAre("rollout-0"));
  job.needs.pool = "big";
  EXPECT_EQ(Assign({job}, fleet).at("a").lacks, "a queue of pool big");
  fleet.push_back(Up("queue-1", Role::kQueue));
  fleet.back().pool = "big";
  const JobStaff staff = Assign({job}, fleet).at("a");
  EXPECT_EQ(staff.queue, "queue-1");
  EXPECT_THAT(staff.rollouts, ElementsAre("rollout-1"));
}

TEST(AssignTest, AnOwnersJobsTogetherGetNoMoreThanTheQuota) {
  const std::vector<DaemonView> fleet = MakeFleet(4, 8, 1);
  JobView first = MakeJob("a", 0, {1, 8}), second = MakeJob("b", 1, {2, 2}),
          third = MakeJob("c", 2, {1, 1});
  for (JobView* job : {&first, &second, &third}) {
    job->owner = "alice";
    job->quota = {.trainers = 2, .rollouts = 4};
  }
  const auto plan = Assign({first, second, third}, fleet);
  EXPECT_THAT(plan.at("a").rollouts, SizeIs(2));
  EXPECT_THAT(plan.at("b").rollouts, SizeIs(2));
  EXPECT_EQ(plan.at("c").waits_for, WaitsFor::kQuota);
  EXPECT_EQ(plan.at("c").lacks,
            "1 more trainer for submitter alice, whose jobs need 2 of 2 (the operator's quota)");

  third.owner = "bob";
  EXPECT_EQ(Assign({first, second, third}, fleet).at("c").lacks, "");
}

TEST(AssignTest, AJobAboveItsOwnersQuotaHoldsBackNoLaterJobOfThatOwner) {
  const std::vector<DaemonView> fleet = MakeFleet(2, 8, 1);
  JobView large = MakeJob("a", 0, {8, 8}), small = MakeJob("b", 1, {1, 1});
  for (JobView* job : {&large, &small}) {
    job->owner = "alice";
    job->quota = {.rollouts = 4};  // It was lowered after the large job was submitted.
  }
  const auto plan = Assign({large, small}, fleet);
  EXPECT_EQ(plan.at("a").waits_for, WaitsFor::kLargerQuota);
  EXPECT_EQ(plan.at("b").lacks, "");
}

// Random jobs of several owners and pools come and end, while daemons come and go. Each plan is
// applied as the controller does it: a daemon that a job loses by the plan leaves first, which
// takes a while.
class AssignProperty : public testing::TestWithParam<uint64_t> {
 protected:
  AssignProperty() : random_(GetParam()) {
    for (int i = 0; i < 24; ++i) {
      daemons_.push_back(Up(absl::StrCat("d", i), kRoles[random_.Below(4)]));
      if (random_.Below(3) == 0) daemons_.back().pool = "big";
    }
    for (const char* pool : {"default", "big"}) {
      for (const Role role : kRoles) {
        daemons_.push_back(Up(absl::StrCat(RoleName(role), "-", pool), role));
        daemons_.back().pool = pool;
      }
    }
  }

  static constexpr int kQuota = 4;  // Rollouts of an owner.

  void AddJob() {
    const int min = 1 + static_cast<int>(random_.Below(3));
    JobView job = MakeJob(absl::StrCat("j", next_), next_,
                          {min, min + static_cast<int>(random_.Below(4))}, {1, 2});
    ++next_;
    job.needs.priority = static_cast<int>(random_.Below(3));
    if (random_.Below(3) == 0) job.needs.pool = "big";
    if (random_.Below(2) == 0) {
      job.owner = random_.Below(2) == 0 ? "alice" : "bob";
      job.quota = {.trainers = 2, .rollouts = kQuota};
    }
    jobs_.push_back(std::move(job));
  }

  const DaemonView& Daemon(const std::string& id) const {
    return *std::find_if(daemons_.begin(), daemons_.end(),
                         [&](const DaemonView& daemon) { return daemon.id == id; });
  }

  // Daemons of the role that the job has and may keep.
  int CountKept(const JobView& job, Role role) const {
    return static_cast<int>(std::count_if(job.held.begin(), job.held.end(), [&](const auto& id) {
      return Daemon(id).role == role && Daemon(id).present && !Daemon(id).drained;
    }));
  }

  void Check(const std::map<std::string, JobStaff>& plan) {
    std::set<std::string> exclusive;
    std::map<std::string, int> rollouts_of_owner;
    for (const JobView& job : jobs_) {
      const JobStaff& staff = plan.at(job.id);
      for (const auto* list : {&staff.trainers, &staff.rollouts}) {
        for (const std::string& id : *list)
          EXPECT_TRUE(exclusive.insert(id).second) << id << " has two jobs";
      }
      for (const std::string& id : job.leaving) {
        if (Daemon(id).role == Role::kReward) continue;
        EXPECT_TRUE(exclusive.insert(id).second) << id << " has not left its job yet";
      }
      EXPECT_LE(static_cast<int>(staff.rollouts.size()), job.needs.rollouts.max);
      EXPECT_LE(static_cast<int>(staff.rewards.size()), job.needs.rewards.max);
      if (!job.started && !staff.lacks.empty()) {
        EXPECT_TRUE(staff.trainers.empty() && staff.rollouts.empty() && staff.rewards.empty())
            << "part of a minimum is held";
      }
      EXPECT_GE(static_cast<int>(staff.rollouts.size()),
                std::min(CountKept(job, Role::kRollout), job.needs.rollouts.min))
          << "a started job falls below its minimum";
      EXPECT_GE(static_cast<int>(staff.trainers.size()), CountKept(job, Role::kTrainer));
      for (const Role role : {Role::kTrainer, Role::kRollout, Role::kReward}) {
        for (const std::string& id : staff.of(role)) {
          EXPECT_EQ(Daemon(id).role, role);
          EXPECT_EQ(Daemon(id).pool, job.needs.pool);
        }
      }
      rollouts_of_owner[job.owner] += static_cast<int>(staff.rollouts.size());
    }
    EXPECT_LE(rollouts_of_owner["alice"], kQuota);
    EXPECT_LE(rollouts_of_owner["bob"], kQuota);
  }

  // The answer is a function of the views, whatever their order.
  void CheckOrder(const std::map<std::string, JobStaff>& plan) {
    std::vector<JobView> jobs = jobs_;
    std::vector<DaemonView> daemons = daemons_;
    for (size_t i = jobs.size(); i > 1; --i) std::swap(jobs[i - 1], jobs[random_.Below(i)]);
    for (size_t i = daemons.size(); i > 1; --i)
      std::swap(daemons[i - 1], daemons[random_.Below(i)]);
    CheckSame(plan, Assign(std::move(jobs), daemons), "in another order");
  }

  void CheckSame(const std::map<std::string, JobStaff>& a, const std::map<std::string, JobStaff>& b,
                 const char* when) {
    for (const JobView& job : jobs_) {
      EXPECT_EQ(a.at(job.id).queue, b.at(job.id).queue) << when;
      EXPECT_EQ(a.at(job.id).trainers, b.at(job.id).trainers) << when;
      EXPECT_EQ(a.at(job.id).rollouts, b.at(job.id).rollouts) << when;
      EXPECT_EQ(a.at(job.id).rewards, b.at(job.id).rewards) << when;
      EXPECT_EQ(a.at(job.id).lacks.empty(), b.at(job.id).lacks.empty()) << when;
    }
  }

  void Apply(const std::map<std::string, JobStaff>& plan) {
    for (JobView& job : jobs_) {
      const JobStaff& staff = plan.at(job.id);
      if (!job.started && !staff.lacks.empty()) continue;
      const std::vector<std::string> before = job.held;
      job = Started(job, staff);
      for (const std::string& id : before) {
        const bool kept = std::find(job.held.begin(), job.held.end(), id) != job.held.end();
        if (!kept && Daemon(id).present) job.leaving.push_back(id);
      }
    }
  }

  // A rollout that moves must be worth it: at rest no job with a share above its minimum has two
  // more than another of its pool that could take one, and none is idle that a job could use.
  void CheckShares(const std::map<std::string, JobStaff>& plan) {
    std::set<std::string> used;
    for (const auto& [id, staff] : plan) used.insert(staff.rollouts.begin(), staff.rollouts.end());
    for (const JobView& poor : jobs_) {
      const int have = static_cast<int>(plan.at(poor.id).rollouts.size());
      if (!poor.started || !poor.owner.empty() || have >= poor.needs.rollouts.max) continue;
      for (const DaemonView& daemon : daemons_) {
        const bool fits = daemon.role == Role::kRollout && daemon.pool == poor.needs.pool;
        EXPECT_TRUE(!fits || !daemon.usable || used.contains(daemon.id)) << daemon.id << " is idle";
      }
      for (const JobView& rich : jobs_) {
        const int more = static_cast<int>(plan.at(rich.id).rollouts.size());
        if (!rich.started || rich.needs.pool != poor.needs.pool || more <= rich.needs.rollouts.min)
          continue;
        EXPECT_LE(more, have + 1) << rich.id << " has more than its share";
      }
    }
  }

  SplitMix64 random_;
  std::vector<DaemonView> daemons_;
  std::vector<JobView> jobs_;
  int next_ = 0;
};

TEST_P(AssignProperty, MinimaPoolsAndQuotasHoldAndTheAnswerIsStable) {
  for (int round = 0; round < 40; ++round) {
    if (random_.Below(2) == 0) AddJob();
    for (DaemonView& daemon : daemons_) {
      daemon.present = random_.Below(8) != 0;
      daemon.drained = random_.Below(12) == 0;
      daemon.usable = daemon.present && !daemon.drained && random_.Below(8) != 0;
    }
    for (JobView& job : jobs_) {
      std::erase_if(job.held, [&](const std::string& id) { return !Daemon(id).present; });
      std::erase_if(job.leaving, [&](const std::string& id) {
        return !Daemon(id).present || random_.Below(2) == 0;
      });
    }
    std::erase_if(jobs_, [&](const JobView& job) { return job.started && random_.Below(10) == 0; });

    const std::map<std::string, JobStaff> plan = Assign(jobs_, daemons_);
    Check(plan);
    CheckOrder(plan);
    Apply(plan);
    CheckSame(plan, Assign(jobs_, daemons_), "applied");
  }
}

TEST_P(AssignProperty, AtRestAllRolloutsAreUsedAndSharedEqually) {
  for (int i = 0; i < 6; ++i) AddJob();
  for (int round = 0; round < 10; ++round) {
    Apply(Assign(jobs_, daemons_));
    for (JobView& job : jobs_) job.leaving.clear();
  }
  const std::map<std::string, JobStaff> plan = Assign(jobs_, daemons_);
  Check(plan);
  CheckShares(plan);
}

TEST_P(AssignProperty, EveryJobThatTheFleetCouldServeStartsAlthoughOthersKeepComing) {
  // Each job runs for a few rounds. New ones come all the time, at a higher priority.
  std::map<std::string, int> ends, came;
  for (int round = 0; round < 400; ++round) {
    if (round < 300 && random_.Below(2) == 0) {
      AddJob();
      jobs_.back().owner.clear();
      // Every pool has one rollout at least; a larger minimum may be more than there are.
      jobs_.back().needs.rollouts.min = std::min(jobs_.back().needs.rollouts.min, 1);
      if (random_.Below(4) == 0) jobs_.back().needs.rollouts = {2, 2};
      came[jobs_.back().id] = round;
    }
    for (JobView& job : jobs_) {
      job.leaving.clear();
      // One round is as long as it takes the priority to rise by one.
      job.waited = (round - came[job.id]) * kAgingStep;
    }
    std::erase_if(jobs_, [&](const JobView& job) { return job.started && ends[job.id] == round; });
    Apply(Assign(jobs_, daemons_));
    for (const JobView& job : jobs_) {
      if (job.started && !ends.contains(job.id))
        ends[job.id] = round + 1 + static_cast<int>(random_.Below(3));
    }
  }
  for (const JobView& job : jobs_) {
    const auto rollouts = std::count_if(daemons_.begin(), daemons_.end(), [&](const auto& daemon) {
      return daemon.role == Role::kRollout && daemon.pool == job.needs.pool;
    });
    EXPECT_LT(rollouts, job.needs.rollouts.min) << job.id << " never started";
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, AssignProperty, testing::Range<uint64_t>(1, 60));

// How many daemons the jobs want, by pool and role.
WantedDaemons CountWantedBy(std::vector<JobView> jobs, const std::vector<DaemonView>& fleet) {
  WantedDaemons wanted;
  Assign(std::move(jobs), fleet, &wanted);
  return wanted;
}
Count Rollouts(const WantedDaemons& wanted) { return wanted.at({kDefaultPool, Role::kRollout}); }
Count Rewards(const WantedDaemons& wanted) { return wanted.at({kDefaultPool, Role::kReward}); }
Count Trainers(const WantedDaemons& wanted) { return wanted.at({kDefaultPool, Role::kTrainer}); }

MATCHER_P2(Wants, min, max, "") { return arg.min == min && arg.max == max; }

TEST(WantedTest, AFleetWithoutJobsWantsNothing) {
  const WantedDaemons wanted = CountWantedBy({}, {});
  EXPECT_THAT(Rollouts(wanted), Wants(0, 0));
  EXPECT_THAT(Rewards(wanted), Wants(0, 0));
  EXPECT_THAT(Trainers(wanted), Wants(0, 0));
}

TEST(WantedTest, ARunningJobWantsBetweenItsMinimumAndItsMaximum) {
  const WantedDaemons wanted = CountWantedBy(
      {MakeJob("a", 0, {1, 4}, {1, 3}), MakeJob("b", 1, {2, 2}, {2, 2})}, MakeFleet(2, 3, 2));
  EXPECT_THAT(Rollouts(wanted), Wants(3, 6));
  EXPECT_THAT(Rewards(wanted), Wants(2, 5)) << "one reward serves both jobs";
  EXPECT_THAT(Trainers(wanted), Wants(2, 2));
}

TEST(WantedTest, AJobThatWaitsForRolloutsOrRewardsAddsItsMinimum) {
  const JobView a = MakeJob("a", 0, {3, 8}), b = MakeJob("b", 0, {1, 8}, {2, 4});
  EXPECT_THAT(Rollouts(CountWantedBy({a}, MakeFleet(1, 1, 1))), Wants(3, 3));
  EXPECT_THAT(Rollouts(CountWantedBy({a}, MakeFleet(1, 0, 0))), Wants(3, 3));
  EXPECT_THAT(Rewards(CountWantedBy({b}, MakeFleet(1, 1, 1))), Wants(2, 2));
}

TEST(WantedTest, AJobThatWaitsForATrainerOrAQueueAddsNoRollouts) {
  std::vector<JobView> jobs;
  for (int i = 0; i < 1000; ++i) jobs.push_back(MakeJob(absl::StrCat("job-", i), i, {2, 4}));
  const WantedDaemons wanted = CountWantedBy(jobs, MakeFleet(1, 1, 1));
  EXPECT_THAT(Rollouts(wanted), Wants(2, 2)) << "there is a trainer for one of them";
  EXPECT_THAT(Trainers(wanted), Wants(1000, 1000));

  std::vector<DaemonView> no_queue = MakeFleet(1, 1, 1);
  no_queue.erase(no_queue.begin());
  EXPECT_THAT(Rollouts(CountWantedBy({MakeJob("a", 0, {1, 4})}, no_queue)), Wants(0, 0));
}

TEST(WantedTest, WithAsManyAsWantedEachJobThatWaitsForThemStarts) {
  std::vector<JobView> jobs;
  for (int i = 0; i < 4; ++i) jobs.push_back(MakeJob(absl::StrCat("job-", i), i, {i + 1, 8}));
  const int rollouts = Rollouts(CountWantedBy(jobs, MakeFleet(4, 2, 1))).min;
  EXPECT_EQ(rollouts, 10);
  for (const auto& [id, staff] : Assign(jobs, MakeFleet(4, rollouts, 1)))
    EXPECT_EQ(staff.lacks, "") << id;
}

TEST(WantedTest, AQuotaLimitsWhatItsOwnersJobsWant) {
  std::vector<JobView> jobs;
  for (int i = 0; i < 3; ++i) {
    jobs.push_back(MakeJob(absl::StrCat("job-", i), i, {1, 8}));
    jobs.back().owner = "alice";
    jobs.back().quota = {.trainers = 2, .rollouts = 5};
  }
  const WantedDaemons wanted = CountWantedBy(jobs, MakeFleet(3, 3, 1));
  EXPECT_THAT(Rollouts(wanted), Wants(2, 5));
  EXPECT_THAT(Trainers(wanted), Wants(2, 2)) << "the third job waits for the quota";
}

TEST(WantedTest, AnEndingJobWantsWhatItHas) {
  JobView job = MakeJob("a", 0, {1, 8});
  job.started = job.ending = true;
  job.queue = "queue-0";
  job.held = {"trainer-0", "rollout-0", "rollout-1"};
  const WantedDaemons wanted = CountWantedBy({job}, MakeFleet(1, 3, 1));
  EXPECT_THAT(Rollouts(wanted), Wants(2, 2));
  EXPECT_THAT(Rewards(wanted), Wants(0, 0));
}

TEST(WantedTest, PoolsAreCountedApart) {
  JobView job = MakeJob("a", 0, {2, 2});
  job.needs.pool = "big";
  std::vector<DaemonView> fleet = MakeFleet(1, 1, 1);
  for (const Role role : {Role::kQueue, Role::kTrainer}) {
    fleet.push_back(Up(absl::StrCat("big-", RoleName(role)), role));
    fleet.back().pool = "big";
  }
  const WantedDaemons wanted = CountWantedBy({job}, fleet);
  EXPECT_THAT(wanted.at({"big", Role::kRollout}), Wants(2, 2));
  EXPECT_THAT(Rollouts(wanted), Wants(0, 0));
}

}  // namespace
}  // namespace sluice::controller
