#include "services/trainer/canary_trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/checkpoint/tensor_set.h"
#include "common/weights/publisher.h"

namespace sluice::trainer {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kTriedJob[] = "00112233445566778899aabbccddeeff";
constexpr absl::Duration kPatience = absl::Seconds(30);

TensorSet RandomMatrix(uint64_t seed) {
  TensorSet set = *TensorSet::Create({{"a", DType::kF32, {4, 100}}});
  SplitMix64 random(seed);
  for (float& x : set.as<float>(0)) x = static_cast<float>(random.Uniform());
  return set;
}

// The publisher is real. The rollouts are listeners that note what they hear, and the test reports
// for them.
class CanaryTrialTest : public testing::Test {
 protected:
  CanaryTrialTest() {
    EXPECT_TRUE(publisher_.Publish(RandomMatrix(1), {1, 4}, "").ok());
    staged_ = *publisher_.Stage(RandomMatrix(2), {1, 5});
  }
  ~CanaryTrialTest() override {
    trial_.Stop();
    if (running_.valid()) (void)running_.get();
  }

  void Connect(const std::string& worker) {
    listeners_[worker] = publisher_.AddListener(worker, [this, worker](const Announcement& told) {
      MutexLock lock(&mu_);
      if (told.candidate) told_.insert(worker);
    });
  }
  void Disconnect(const std::string& worker) { publisher_.RemoveListener(listeners_.at(worker)); }

  void Run(CanaryRules rules = {}) {
    running_ = std::async(std::launch::async,
                          [this, rules] { return trial_.Run(&publisher_, staged_, rules); });
  }
  void Report(const std::string& worker, const VersionHealth& health) {
    publisher_.Report({.worker = worker,
                       .version = staged_.version,
                       .phase = "ACTIVE",
                       .state = staged_.state,
                       .cause = "",
                       .parent = "",
                       .times = {},
                       .health = health});
  }
  // Waits until another worker than those of `but` is told of the version.
  std::string AwaitCanary(const std::set<std::string>& but = {}) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (absl::Now() < deadline) {
      {
        MutexLock lock(&mu_);
        for (const std::string& worker : told_) {
          if (!but.contains(worker)) return worker;
        }
      }
      absl::SleepFor(absl::Milliseconds(2));
    }
    ADD_FAILURE() << "no canary was chosen";
    return "";
  }
  // Waits until List() would say this of the trial.
  bool AwaitText(const std::string& text) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (absl::Now() < deadline) {
      if (const auto trial = publisher_.trial(); trial && absl::StrContains(trial->text, text))
        return true;
      absl::SleepFor(absl::Milliseconds(2));
    }
    return false;
  }
  std::set<std::string> told() {
    MutexLock lock(&mu_);
    return told_;
  }
  std::vector<std::string> events() {
    MutexLock lock(&mu_);
    return events_;
  }

  const VersionHealth good_{
      .rows = 300, .bad_rows = 0, .gap_tokens = 300, .gap = 0.01, .probed = true};
  ManualClock clock_;
  Mutex mu_;
  std::set<std::string> told_ ABSL_GUARDED_BY(mu_);       // Of the version on trial.
  std::vector<std::string> events_ ABSL_GUARDED_BY(mu_);  // "CODE: MESSAGE"
  JobContext job_{.config = {.id = kTriedJob, .name = "digits", .incarnation = 1},
                  .worker = "trainer-0",
                  .clock = &clock_,
                  .event_sink = [this](const common::v1::Event& event) {
                    MutexLock lock(&mu_);
                    events_.push_back(absl::StrCat(event.code(), ": ", event.message()));
                  }};
  WeightPublisher publisher_{{.job = kTriedJob, .retain_versions = 2}, &clock_};
  std::map<std::string, uint64_t> listeners_;
  PublishedVersion staged_;
  CanaryTrial trial_{&job_};
  std::future<absl::Status> running_;
};

TEST_F(CanaryTrialTest, AVersionThatProvesGoodPassesAndOnlyOneRolloutWasTold) {
  for (const char* worker : {"rollout-0", "rollout-1", "rollout-2"}) Connect(worker);
  Run();
  const std::string canary = AwaitCanary();
  EXPECT_THAT(job_.waits.Edges(), testing::SizeIs(1)) << "`why` names the trial";
  Report(canary, good_);

  EXPECT_EQ(running_.get(), absl::OkStatus());
  EXPECT_THAT(told(), testing::ElementsAre(canary));
  EXPECT_THAT(events(), IsEmpty());
  EXPECT_FALSE(publisher_.trial().has_value());
  EXPECT_THAT(job_.waits.Edges(), IsEmpty());
}

TEST_F(CanaryTrialTest, AVersionAtFaultIsWithdrawnAndNamedToNobodyAnyMore) {
  Connect("rollout-0");
  Connect("rollout-1");
  Run();
  const std::string canary = AwaitCanary();
  Report(canary, {.rows = 4, .bad_rows = 4, .gap_tokens = 0, .gap = 0, .probed = true});

  const absl::Status status = running_.get();
  EXPECT_EQ(ReasonOf(status), "WITHDRAWN");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("which only ", canary, " has served")));
  EXPECT_THAT(std::string(status.message()), HasSubstr("4 of 4 rows"));
  EXPECT_EQ(trial_.withdrawn(), staged_.version);
  EXPECT_THAT(told(), testing::ElementsAre(canary));
  Connect("rollout-2");
  EXPECT_THAT(told(), testing::ElementsAre(canary));
  EXPECT_EQ(publisher_.latest()->version, (PolicyVersion{1, 4}));
}

TEST_F(CanaryTrialTest, WhatOthersReportDoesNotDecide) {
  Connect("rollout-0");
  Connect("rollout-1");
  Run();
  const std::string canary = AwaitCanary();
  const std::string other = canary == "rollout-0" ? "rollout-1" : "rollout-0";
  Report(other, {.rows = 4, .bad_rows = 4, .gap_tokens = 0, .gap = 0, .probed = true});
  Report(canary, good_);
  EXPECT_EQ(running_.get(), absl::OkStatus());
}

TEST_F(CanaryTrialTest, ACanaryThatIsGoneIsReplacedButNotOneThatOnlyLosesItsConnection) {
  Connect("rollout-0");
  Connect("rollout-1");
  CanaryRules rules;
  rules.wait = absl::Hours(1);
  Run(rules);
  const std::string first = AwaitCanary();
  Disconnect(first);
  clock_.Advance(absl::Seconds(4));
  Connect(first);
  Report(first, {.rows = 0, .bad_rows = 0, .gap_tokens = 0, .gap = 0, .probed = false});
  ASSERT_TRUE(AwaitText("0 of 256 tokens"));
  clock_.Advance(absl::Seconds(4));
  EXPECT_THAT(told(), testing::ElementsAre(first));

  Disconnect(first);
  ASSERT_TRUE(AwaitText("0 of 256 tokens"));
  clock_.Advance(absl::Seconds(6));
  const std::string second = AwaitCanary({first});
  EXPECT_THAT(events(), Contains(HasSubstr("canary_replaced")));
  EXPECT_TRUE(AwaitText("the canary has not loaded it yet"))
      << "the evidence is that of the second";
  Report(second, good_);
  EXPECT_EQ(running_.get(), absl::OkStatus());
}

TEST_F(CanaryTrialTest, AfterTheWaitAVersionOfWhichLittleIsKnownPassesWithAnEvent) {
  Connect("rollout-0");
  Run();
  const std::string canary = AwaitCanary();
  Report(canary, {.rows = 1, .bad_rows = 0, .gap_tokens = 0, .gap = 0, .probed = true});
  ASSERT_TRUE(AwaitText("1 of 256 tokens"));
  EXPECT_THAT(events(), IsEmpty());

  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(running_.get(), absl::OkStatus());
  EXPECT_THAT(events(), Contains(HasSubstr("canary_unjudged: version 1:5")));
}

TEST_F(CanaryTrialTest, AVersionThatTakesLongToLoadGoesToNobodyElse) {
  Connect("rollout-0");
  Connect("rollout-1");
  Run();
  const std::string canary = AwaitCanary();
  clock_.Advance(absl::Minutes(9));
  ASSERT_TRUE(AwaitText("the canary has not loaded it yet"));
  EXPECT_THAT(told(), testing::ElementsAre(canary));
  Report(canary, good_);
  EXPECT_EQ(running_.get(), absl::OkStatus());
}

TEST_F(CanaryTrialTest, WithoutAnyRolloutItDoesNotWaitForEver) {
  Run();
  ASSERT_TRUE(AwaitText("the canary has not loaded it yet"));
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(running_.get(), absl::OkStatus());
  EXPECT_THAT(events(), Contains(HasSubstr("no rollout is there")));
}

TEST_F(CanaryTrialTest, StopEndsIt) {
  Connect("rollout-0");
  Run();
  (void)AwaitCanary();
  trial_.Stop();
  EXPECT_TRUE(absl::IsCancelled(running_.get()));
  EXPECT_THAT(trial_.withdrawn(), testing::Eq(std::nullopt));
}

TEST_F(CanaryTrialTest, RewardsOfGroupsThatTheTrainerReadsDecideIfTheJobSaysSo) {
  const auto groups = [](int64_t version, double reward) {
    std::vector<Group> made(8);
    for (size_t i = 0; i < made.size(); ++i) {
      Trajectory trajectory;
      trajectory.versions = {-1, version, version};
      trajectory.reward = reward + 0.01 * static_cast<double>(i);
      made[i].members = {trajectory, trajectory};
    }
    return made;
  };
  Connect("rollout-0");
  trial_.AddRewards(groups(4, 0.9));
  CanaryRules rules;
  rules.max_reward_drop = 2;
  Run(rules);
  Report(AwaitCanary(), good_);
  ASSERT_TRUE(AwaitText("the rewards of 0 groups of it and of 8 others"));

  trial_.AddRewards(groups(5, 0.1));
  const absl::Status status = running_.get();
  EXPECT_EQ(ReasonOf(status), "WITHDRAWN");
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_reward_drop is 2"));
}

}  // namespace
}  // namespace sluice::trainer
