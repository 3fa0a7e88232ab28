#include "tools/sluice/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/job/v1/job.pb.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

job::v1::JobSpec Spec() {
  job::v1::JobSpec spec;
  spec.mutable_limits()->set_max_steps(10);
  spec.mutable_queue()->set_max_staleness(4);
  return spec;
}

job::v1::StepReport Step(int k, double reward) {
  job::v1::StepReport step;
  step.set_k(k);
  step.mutable_at()->set_seconds(100 + 2 * k);
  (*step.mutable_values())["reward_mean"] = reward;
  (*step.mutable_values())["entropy"] = 1.9;
  (*step.mutable_staleness())["0"] = 50;
  (*step.mutable_staleness())["1"] = 1940;
  (*step.mutable_staleness())["2"] = 10;
  return step;
}

TEST(Progress, TheTwoLinesTellStepEndStalenessAndReward) {
  Progress progress(false);
  progress.SetSpec(Spec());
  for (int k = 0; k < 4; ++k) progress.Add(Step(k, 0.1 + 0.2 * k));

  EXPECT_EQ(progress.StepLine(),
            "step 4/10 [############..................] 40 %  ends in 12s   staleness p50 1 p99 1 "
            "(bound 4)");
  EXPECT_EQ(progress.RewardLine(), "reward 0.10 -> 0.70 _.=#  entropy 1.90   tok/s trained 1.0k");
  EXPECT_EQ(progress.LogLine(),
            "step 4/10  reward 0.700  entropy 1.90  staleness max 2  ends in 12s");
}

TEST(Progress, TheSpreadOfRewardsIsShown) {
  job::v1::StepReport step = Step(0, 0.1);
  (*step.mutable_values())["reward_std"] = 0.3;
  (*step.mutable_values())["flat_share"] = 0.75;
  Progress progress(false);
  progress.Add(step);

  EXPECT_THAT(progress.RewardLine(), HasSubstr("  std 0.30  no spread 75 %  entropy 1.90"));
  EXPECT_EQ(progress.LogLine(),
            "step 1  reward 0.100  std 0.30  no spread 75 %  entropy 1.90  staleness max 2");
}

TEST(Progress, ALongRunIsDrawnInFortyPoints) {
  Progress progress(false);
  for (int k = 0; k < 400; ++k) progress.Add(Step(k, k));
  const std::string line = progress.RewardLine();
  EXPECT_EQ(line.find("  entropy") - line.find('_'), 40u);
  // Without a limit there is neither a bar nor an end.
  EXPECT_EQ(progress.StepLine().substr(0, 9), "step 400 ");
}

TEST(Progress, ARunPastItsBestSaysHowGoodItWas) {
  Progress progress(false);
  int k = 0;
  for (const double reward : {0.02, 0.33, 0.08}) progress.Add(Step(k++, reward));

  EXPECT_THAT(progress.RewardLine(), HasSubstr("reward 0.02 -> 0.08 _#_  best 0.33  "));
}

TEST(Progress, TheWallLimitEndsARunToo) {
  job::v1::JobSpec spec = Spec();
  spec.mutable_limits()->mutable_wall()->set_seconds(10);
  Progress progress(true);
  progress.SetSpec(spec);
  for (int k = 0; k < 3; ++k) progress.Add(Step(k, 0.5));

  EXPECT_THAT(progress.StepLine(), HasSubstr("ends in 6s"));
  EXPECT_THAT(progress.RewardLine(), HasSubstr("▁▁▁"));
}

TEST(Progress, ASupervisedJobShowsItsLoss) {
  job::v1::JobSpec spec = Spec();
  spec.set_kind("sft");
  Progress progress(false);
  progress.SetSpec(spec);
  job::v1::StepReport step;
  (*step.mutable_values())["loss"] = 2.5;
  progress.Add(step);

  EXPECT_EQ(progress.LogLine(), "step 1/10  loss 2.500");
  EXPECT_THAT(progress.RewardLine(), HasSubstr("loss 2.50 -> 2.50"));
}

TEST(Progress, AJobThatLearnsFromATeacherAloneShowsItsDistanceToIt) {
  job::v1::JobSpec spec = Spec();
  spec.mutable_model()->mutable_teacher()->set_path("t");
  Progress progress(false);
  progress.SetSpec(spec);
  for (const double kl : {2.5, 0.25}) {
    job::v1::StepReport step;
    step.set_k(kl > 1 ? 0 : 1);
    (*step.mutable_values())["teacher_kl"] = kl;
    progress.Add(step);
  }
  EXPECT_THAT(progress.LogLine(), HasSubstr("step 2/10  teacher kl 0.250  "));
  EXPECT_THAT(progress.RewardLine(), HasSubstr("teacher kl 2.50 -> 0.25"));
}

TEST(Progress, DurationsAndCountsAreShort) {
  EXPECT_EQ(ShortDuration(64), "1m04s");
  EXPECT_EQ(ShortDuration(3720), "1h02m");
  EXPECT_EQ(ShortDuration(0.4), "0s");
  EXPECT_EQ(ShortCount(312), "312");
  EXPECT_EQ(ShortCount(19840), "19.8k");
  EXPECT_EQ(ShortCount(2.5e6), "2.5M");
}

TEST(Progress, NothingIsShownBeforeTheFirstStep) {
  Progress progress(true);
  EXPECT_EQ(progress.RewardLine(), "no step yet");
  EXPECT_EQ(progress.LogLine(), "step 0");
}

TEST(Table, AResultEndsWithItsWarnings) {
  job::v1::JobResult result;
  EXPECT_THAT(ResultTable(result, /*utf8=*/true), testing::Not(HasSubstr("warning")));
  result.add_warnings("nothing could be learned");
  EXPECT_THAT(ResultTable(result, /*utf8=*/true),
              testing::EndsWith("\nwarning: nothing could be learned\n"));
}

TEST(Table, ColumnsAreAligned) {
  EXPECT_EQ(Table({{"A", "LONG"}, {"bcd", "e"}}), "A    LONG\nbcd  e\n");
}

}  // namespace
}  // namespace sluice::cli
