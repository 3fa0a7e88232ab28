#include "services/controller/core/learning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "common/base/splitmix.h"

namespace sluice::controller {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

double Between(SplitMix64& random, double low, double high) {
  return low + (high - low) * random.Uniform();
}

// The state of a policy at one step of a simulated run.
struct Policy {
  double success = 0;    // Chance that an answer is right.
  double sameness = 0;   // Share of prompts whose answers are all right or all wrong.
  double entropy = 2.7;  // Nats.
};

// Draws the answers of a step, with reward 1 where they are right, and reports on them as a trainer
// does.
StepSignal Sample(SplitMix64& random, int64_t k, const Policy& policy, int groups) {
  constexpr int kMembers = 8;
  int right = 0, flat = 0;
  for (int g = 0; g < groups; ++g) {
    int rights = 0;
    if (random.Uniform() < policy.sameness) {
      rights = random.Uniform() < policy.success ? kMembers : 0;
    } else {
      for (int m = 0; m < kMembers; ++m) rights += random.Uniform() < policy.success;
    }
    right += rights;
    flat += rights == 0 || rights == kMembers;
  }

  StepSignal step;
  step.k = k;
  step.reward_mean = static_cast<double>(right) / (groups * kMembers);
  step.reward_min = right < groups * kMembers ? 0 : 1;
  step.reward_max = right > 0 ? 1 : 0;
  step.flat_share = static_cast<double>(flat) / groups;
  step.entropy = policy.entropy * Between(random, 0.95, 1.05);
  step.grad_norm = flat == groups ? 0 : 0.1;
  step.lr = 1e-3;
  return step;
}

// A run that learns: reward rises along a logistic curve and wanders about it, while entropy falls.
// The better it ends, the surer it is of its answers.
struct HealthyRun {
  explicit HealthyRun(uint64_t seed) : random(seed) {
    const int kGroups[] = {8, 16, 32};
    groups = kGroups[random.Below(3)];
    steps = 100 + static_cast<int>(random.Below(150));
    const bool pretrained = random.Below(3) == 0;
    start = pretrained ? Between(random, 0.1, 0.7) : Between(random, 0, 0.08);
    end = Between(random, start, 0.99);
    middle = Between(random, 0.1, 0.6) * steps;
    width = Between(random, 0.01, 0.2) * steps;
    first_entropy = pretrained ? Between(random, 0.2, 1.5) : Between(random, 1.5, 11);
    last_entropy =
        first_entropy * (end > 0.8 ? Between(random, 0.005, 0.3) : Between(random, 0.05, 0.8));
    sameness = Between(random, 0, 0.8);
  }

  Policy At(int k) {
    const double progress = 1 / (1 + std::exp((middle - k) / width));
    wander = 0.9 * wander + 0.02 * (random.Uniform() - 0.5);
    const double success = start + (end - start) * progress;
    return {.success = std::clamp(success + wander * success, 0.0, 1.0),
            .sameness = sameness * progress,
            .entropy = first_entropy * std::pow(last_entropy / first_entropy, progress)};
  }

  SplitMix64 random;
  int groups, steps;
  double start, end, middle, width, first_entropy, last_entropy, sameness, wander = 0;
};

TEST(LearningWatchTest, NoAlarmIsRaisedInTenThousandRunsThatLearn) {
  int runs_with_alarm = 0;
  for (uint64_t seed = 0; seed < 10000; ++seed) {
    HealthyRun run(seed);
    LearningWatch watch;
    for (int k = 0; k < run.steps; ++k) watch.Add(Sample(run.random, k, run.At(k), run.groups));
    const bool alarm = watch.spell(Finding::kEntropyCollapse).has_value() ||
                       watch.spell(Finding::kRewardCollapse).has_value();
    runs_with_alarm += alarm;
    EXPECT_FALSE(alarm) << "seed " << seed << ": " << testing::PrintToString(watch.Warnings());
  }

  EXPECT_EQ(runs_with_alarm, 0);
}

// A step whose policy is at these distances from the one that sampled.
StepSignal Distant(int64_t k, double kl, double ess, double kept) {
  return {.k = k,
          .reward_mean = 0.5,
          .flat_share = 0,
          .entropy = 1,
          .grad_norm = 1,
          .lr = 1e-3,
          .kl = kl,
          .ess = ess,
          .kept = kept};
}

TEST(LearningWatchTest, APolicyFarFromItsDataIsNamedWithTheValueAndEndsWhenItIsBack) {
  struct Case {
    double kl, ess, kept;
    const char* text;
  };
  for (const Case& c : {Case{0.2, 0.9, 1, "kl_behav_theta_k3 over 10 steps was 0.2"},
                        Case{0.01, 0.1, 1, "ess over 10 steps was 0.1"},
                        Case{0.01, 0.9, 0.2, "kept over 10 steps was 0.2"}}) {
    LearningWatch watch;
    int64_t k = 0;
    for (; k < LearningWatch::kLong - 1; ++k)
      EXPECT_THAT(watch.Add(Distant(k, c.kl, c.ess, c.kept)), IsEmpty());
    EXPECT_THAT(watch.Add(Distant(k++, c.kl, c.ess, c.kept)), ElementsAre(Finding::kOffPolicy));
    EXPECT_THAT(watch.Text(Finding::kOffPolicy), HasSubstr(c.text));
    for (int i = 0; i < LearningWatch::kLong; ++i) watch.Add(Distant(k++, 0.01, 0.9, 1));
    EXPECT_FALSE(watch.holds(Finding::kOffPolicy));
    EXPECT_THAT(watch.Text(Finding::kOffPolicy), HasSubstr("over later in the run"));
  }
}

TEST(LearningWatchTest, ASpikeOfAFewStepsIsNotFarFromTheData) {
  LearningWatch watch;
  for (int64_t k = 0; k < 200; ++k) {
    const bool spike = k % 40 < 3;
    watch.Add(Distant(k, spike ? 0.3 : 0.01, spike ? 0.05 : 0.9, 1));
  }
  EXPECT_FALSE(watch.spell(Finding::kOffPolicy).has_value());
}

TEST(LearningWatchTest, TrainerAndRolloutThatDisagreeThreeTimesAreAlarmed) {
  const auto disagree = [](int64_t k, double by) {
    StepSignal signal = Distant(k, 0, 1, 1);
    signal.mismatch = by;
    return signal;
  };
  LearningWatch watch;
  EXPECT_THAT(watch.Add(disagree(0, 0.3)), IsEmpty());
  EXPECT_THAT(watch.Add(disagree(1, 0.01)), IsEmpty());
  EXPECT_THAT(watch.Add(disagree(2, 0.3)), IsEmpty());
  // A step with stale tokens says nothing.
  EXPECT_THAT(watch.Add(Distant(3, 0, 1, 1)), IsEmpty());
  EXPECT_THAT(watch.Add(disagree(4, 0.3)), IsEmpty());
  EXPECT_THAT(watch.Add(disagree(5, 0.3)), ElementsAre(Finding::kMismatch));
  EXPECT_EQ(SeverityOf(Finding::kMismatch), Severity::kAlarm);
  EXPECT_THAT(watch.Text(Finding::kMismatch), HasSubstr("differ by 0.3"));
  watch.Add(disagree(6, 0.01));
  EXPECT_FALSE(watch.holds(Finding::kMismatch));
}

TEST(LearningWatchTest, ALearningRateThatFollowsTheSamplesIsNoFinding) {
  StepReport step;
  step.values = {{"kl_behav_theta_k3", 0.5}, {"ess_lr_factor", 0.2}, {"kept", 1}};
  EXPECT_FALSE(SignalOf(step).kl.has_value());
  step.values = {{"kl_behav_theta_k3", 0.5}, {"ess", 0.2}, {"logprob_mismatch", 0.01}};
  EXPECT_EQ(SignalOf(step).kl, 0.5);
  EXPECT_EQ(SignalOf(step).ess, 0.2);
  EXPECT_EQ(SignalOf(step).mismatch, 0.01);
}

// Rewards are so rare that most steps have none, so the mean is all noise.
TEST(LearningWatchTest, RareRewardsAreNoCollapse) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SplitMix64 random(seed);
    const Policy policy{.success = Between(random, 0.0005, 0.02)};
    LearningWatch watch;
    for (int k = 0; k < 200; ++k) watch.Add(Sample(random, k, policy, 32));

    EXPECT_FALSE(watch.spell(Finding::kRewardCollapse).has_value())
        << "seed " << seed << ": " << watch.Text(Finding::kRewardCollapse);
    EXPECT_FALSE(watch.spell(Finding::kEntropyCollapse).has_value()) << "seed " << seed;
  }
}

TEST(LearningWatchTest, ATaskThatIsSolvedIsNoCollapse) {
  LearningWatch watch;
  SplitMix64 random(1);
  for (int k = 0; k < 100; ++k) {
    const double sure = std::min(1.0, k / 40.0);
    watch.Add(
        Sample(random, k, {.success = 0.1 + 0.9 * sure, .entropy = 2.7 * (1 - sure) + 1e-6}, 32));
  }

  EXPECT_FALSE(watch.spell(Finding::kEntropyCollapse).has_value());
  EXPECT_FALSE(watch.spell(Finding::kRewardCollapse).has_value());
  EXPECT_TRUE(watch.holds(Finding::kNoSignal));
  EXPECT_THAT(watch.Text(Finding::kNoSignal), HasSubstr("The data is learned"));
}

// The policy is certain of wrong answers from step `end` on, which must be reported within kLong
// steps.
TEST(LearningWatchTest, AnEntropyThatCollapsesIsAlarmedWithinTenSteps) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    HealthyRun run(seed);

    const int begin = 1 + static_cast<int>(run.random.Below(80)),
              end = begin + static_cast<int>(run.random.Below(5));
    // Some prompts are still answered right by luck.
    const double left = Between(run.random, 0, 0.5) * run.start;

    LearningWatch watch;
    int alarmed = -1;
    for (int k = 0; k < end + LearningWatch::kLong && alarmed < 0; ++k) {
      const Policy policy = k < begin ? run.At(k)
                            : k < end ? Policy{.success = left, .sameness = 0.8, .entropy = 0.1}
                                      : Policy{.success = left, .sameness = 1, .entropy = 1e-5};
      for (const Finding finding : watch.Add(Sample(run.random, k, policy, run.groups))) {
        if (finding == Finding::kEntropyCollapse) alarmed = k;
      }
    }

    EXPECT_GE(alarmed, begin) << "seed " << seed << " collapses at step " << begin;
  }
}

TEST(LearningWatchTest, AnEntropyThatIsGoneAfterTheFirstStepIsAlarmed) {
  LearningWatch watch;
  SplitMix64 random(1);
  watch.Add(Sample(random, 0, {.success = 0.05, .entropy = 2.7}, 32));
  int alarmed = -1;
  for (int k = 1; k < 30; ++k) {
    for (const Finding finding :
         watch.Add(Sample(random, k, {.success = 0, .sameness = 1, .entropy = 0}, 32))) {
      if (finding == Finding::kEntropyCollapse) alarmed = k;
    }
  }

  EXPECT_EQ(alarmed, LearningWatch::kLong);
  EXPECT_THAT(watch.Text(Finding::kEntropyCollapse), HasSubstr("lower trainer.optimizer.lr"));
}

// Reward falls to a quarter or less, at once or over 30 steps. It must be reported within kLong
// steps after the fall.
TEST(LearningWatchTest, ARewardThatFallsToAQuarterIsAlarmedWithinTenSteps) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SplitMix64 random(seed);
    const double level = Between(random, 0.35, 0.95), left = Between(random, 0, 0.25) * level;
    const int begin = 15 + static_cast<int>(random.Below(100)),
              end = begin + 1 + static_cast<int>(random.Below(30));

    LearningWatch watch;
    int alarmed = -1;
    for (int k = 0; k < end + LearningWatch::kLong && alarmed < 0; ++k) {
      const double fall = std::clamp(static_cast<double>(k - begin) / (end - begin), 0.0, 1.0);
      const Policy policy{.success = level + (left - level) * fall, .sameness = 0.3, .entropy = 1};
      for (const Finding finding : watch.Add(Sample(random, k, policy, 32))) {
        if (finding == Finding::kRewardCollapse) alarmed = k;
      }
    }

    EXPECT_GE(alarmed, begin) << "seed " << seed << ": from " << level << " to " << left
                              << " over steps " << begin << " to " << end;
  }
}

TEST(LearningWatchTest, ACollapsedRewardThatComesBackMayCollapseAgain) {
  LearningWatch watch;
  SplitMix64 random(1);
  int alarms = 0;
  for (int k = 0; k < 120; ++k) {
    const bool low = (k / 30) % 2 == 1;
    for (const Finding finding :
         watch.Add(Sample(random, k, {.success = low ? 0.02 : 0.6, .entropy = 1}, 32))) {
      alarms += finding == Finding::kRewardCollapse;
    }
  }

  EXPECT_EQ(alarms, 2);
  EXPECT_TRUE(watch.holds(Finding::kRewardCollapse));
}

// A step in which all rewards are 0, so that it teaches nothing.
StepSignal Silent(int64_t k) {
  return {.k = k,
          .reward_mean = 0,
          .reward_min = 0,
          .reward_max = 0,
          .flat_share = 1,
          .grad_norm = 0.1,
          .lr = 1e-3};
}
// A step in which rewards differ.
StepSignal Teaching(int64_t k) {
  return {.k = k,
          .reward_mean = 0.03,
          .reward_min = 0,
          .reward_max = 1,
          .flat_share = 0.5,
          .grad_norm = 0.1,
          .lr = 1e-3};
}

TEST(LearningWatchTest, TenSilentStepsInARowAreToldOnceASpell) {
  LearningWatch watch;
  std::vector<int64_t> told;
  for (int64_t k = 0; k < 60; ++k) {
    const bool silent =
        (k >= 5 && k < 30) || (k >= 31 && k < 40) || k >= 45;  // 25, 9 and 15 in a row.
    if (!watch.Add(silent ? Silent(k) : Teaching(k)).empty()) told.push_back(k);
  }

  EXPECT_THAT(told, ElementsAre(14, 54));
  EXPECT_EQ(watch.spell(Finding::kNoSignal)->first, 45);
  EXPECT_EQ(watch.spell(Finding::kNoSignal)->last, 59);
  EXPECT_TRUE(watch.holds(Finding::kNoSignal));

  watch.Add(Teaching(60));
  EXPECT_FALSE(watch.holds(Finding::kNoSignal));
  EXPECT_THAT(watch.Warnings(), ElementsAre(HasSubstr("steps 45 to 59")));
}

TEST(LearningWatchTest, WhatCanBeDoneDependsOnWhyNothingIsLearned) {
  const auto text = [](StepSignal step) {
    LearningWatch watch;
    for (int64_t k = 0; k < LearningWatch::kSilentSteps; ++k) {
      step.k = k;
      watch.Add(step);
    }
    return watch.Text(Finding::kNoSignal);
  };

  EXPECT_THAT(text(Silent(0)), HasSubstr("the verifier and the gold answers"));

  StepSignal step = Teaching(0);
  step.grad_norm = 0;
  EXPECT_THAT(text(step), HasSubstr("the gradient is 0"));

  step = Teaching(0);
  step.lr = 0;
  EXPECT_THAT(text(step), HasSubstr("control run"));

  step = Teaching(0);
  step.skipped = true;
  EXPECT_THAT(text(step), HasSubstr("skipped"));
  EXPECT_THAT(text(Teaching(0)), IsEmpty());
}

TEST(LearningWatchTest, AShortRunThatTaughtNothingAtAllIsWarnedOf) {
  LearningWatch watch;
  for (int64_t k = 0; k < 3; ++k) EXPECT_THAT(watch.Add(Silent(k)), IsEmpty());
  EXPECT_THAT(watch.Warnings(), ElementsAre(HasSubstr("in any of the 3 steps")));
  watch.Add(Teaching(3));
  EXPECT_THAT(watch.Warnings(), IsEmpty());
  EXPECT_THAT(LearningWatch().Warnings(), IsEmpty());
}

TEST(LearningWatchTest, ValuesThatATrainerDoesNotReportRaiseNothing) {
  LearningWatch watch;
  for (int64_t k = 0; k < 100; ++k) EXPECT_THAT(watch.Add({.k = k}), IsEmpty());
  EXPECT_THAT(watch.Warnings(), IsEmpty());

  StepReport report;
  report.values = {{"reward_mean", 0.5}, {"entropy", std::nan("")}};
  const StepSignal signal = SignalOf(report);
  EXPECT_EQ(signal.reward_mean, 0.5);
  EXPECT_EQ(signal.entropy, std::nullopt);
  EXPECT_EQ(signal.grad_norm, std::nullopt);
}

TEST(LearningWatchTest, TheSameStepsGiveTheSameFindings) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    HealthyRun run(seed);
    std::vector<StepSignal> steps;
    for (int k = 0; k < 60; ++k) steps.push_back(Sample(run.random, k, run.At(k), run.groups));
    for (int k = 60; k < 90; ++k)
      steps.push_back(Sample(run.random, k, {.sameness = 1, .entropy = 0}, run.groups));

    LearningWatch first, second;
    for (const StepSignal& step : steps) EXPECT_EQ(first.Add(step), second.Add(step));
    EXPECT_EQ(first.Warnings(), second.Warnings());
    EXPECT_FALSE(first.Warnings().empty());
  }
}

}  // namespace
}  // namespace sluice::controller
