#include "tools/sluice/curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "sluice/job/v1/job.pb.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// Returns a result whose curve has one point for each number. A point stands for ten steps, and its
// number is a loss if `loss` is true, else a reward.
job::v1::JobResult Result(const std::vector<double>& rewards, bool loss = false) {
  job::v1::JobResult result;
  result.set_reward_first(loss || rewards.empty() ? kNone : rewards.front());
  result.set_reward_last(loss || rewards.empty() ? kNone : rewards.back());
  for (size_t i = 0; i < rewards.size(); ++i) {
    job::v1::CurvePoint& point = *result.add_curve();
    point.set_first_step(static_cast<int64_t>(10 * i));
    point.set_last_step(static_cast<int64_t>(10 * i + 9));
    point.set_reward(loss ? kNone : rewards[i]);
    point.set_loss(loss ? rewards[i] : kNone);
  }
  return result;
}

TEST(CurveTest, ACollapseIsSeenInTheResult) {
  job::v1::JobResult result = Result({0.05, 0.2, 0.33, 0.2, 0.08});
  *result.mutable_best() = result.curve(2);
  *result.mutable_worst() = result.curve(0);

  EXPECT_THAT(
      CurveRows(result, /*utf8=*/true),
      ElementsAre(
          ElementsAre("reward",
                      "0.050 -> 0.080   best 0.330 (steps 20-29)   worst 0.050 (steps 0-9)"),
          ElementsAre("curve", "▁▅█▅▁   steps 0-49")));
  EXPECT_THAT(CurveRows(result, /*utf8=*/false)[1], ElementsAre("curve", "_-#-_   steps 0-49"));
  EXPECT_THAT(ResultTable(result, false), HasSubstr("\ncurve       _-#-_   steps 0-49\n"));
}

TEST(CurveTest, ASupervisedJobShowsItsLoss) {
  job::v1::JobResult result = Result({3, 1, 2}, /*loss=*/true);
  *result.mutable_best() = result.curve(1);
  *result.mutable_worst() = result.curve(0);

  EXPECT_THAT(
      CurveRows(result, false),
      ElementsAre(
          ElementsAre("loss",
                      "3.000 -> 2.000   best 1.000 (steps 10-19)   worst 3.000 (steps 0-9)"),
          ElementsAre("curve", "#_-   steps 0-29")));
}

TEST(CurveTest, StepsThatScoredNothingAreGapsAndOnePointIsNoCurve) {
  EXPECT_THAT(CurveRows(Result({0.1, kNone, 0.3}), false)[1],
              ElementsAre("curve", "_ #   steps 0-29"));
  EXPECT_THAT(CurveRows(Result({0.1}), false),
              ElementsAre(ElementsAre("reward", "0.100 -> 0.100")));
  EXPECT_THAT(CurveRows(Result({}), false), ElementsAre(ElementsAre("reward", "none")));
  EXPECT_THAT(CurveRows(Result({kNone, kNone}), false), ElementsAre(ElementsAre("reward", "none")));
}

TEST(CurveTest, EqualValuesAreDrawnAsTheLeast) { EXPECT_EQ(Sparkline({0.5, 0.5}, false), "__"); }

}  // namespace
}  // namespace sluice::cli
