#include "tests/bench/async/measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/rpc/convert.h"
#include "tests/bench/report.h"

namespace sluice::bench {
namespace {

using testing::DoubleNear;

MATCHER_P(IsNear, value, "") {
  return testing::ExplainMatchResult(DoubleNear(value, 1e-6), arg, result_listener);
}

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

job::v1::StepReport Step(int64_t k, double at, double tokens) {
  job::v1::StepReport step;
  step.set_k(k);
  *step.mutable_at() = rpc::ToProto(At(at));
  (*step.mutable_values())["tokens"] = tokens;
  (*step.mutable_staleness())["0"] = static_cast<int64_t>(tokens) / 4;
  (*step.mutable_staleness())["2"] = static_cast<int64_t>(tokens) * 3 / 4;
  return step;
}

DaemonUse Trainer(double at, double cpu, double waited) {
  return {.name = "trainer-0",
          .role = "trainer",
          .at = At(at),
          .cpu_seconds = cpu,
          .metrics = absl::StrCat(
              "sluice_trainer_phase_seconds_total{job_id=\"a\",phase=\"wait_data\"} ", waited,
              "\nsluice_trainer_phase_seconds_total{job_id=\"a\",phase=\"optim\"} 7\n")};
}

DaemonUse Rollout(double at, double cpu, double idle, double tokens, double engine_steps) {
  return {.name = "rollout-0",
          .role = "rollout",
          .at = At(at),
          .cpu_seconds = cpu,
          .metrics = absl::StrCat("sluice_rollout_phase_seconds_total{phase=\"idle\"} ", idle,
                                  "\nsluice_rollout_tokens_generated_total{job_id=\"a\"} ", tokens,
                                  "\nsluice_rollout_decode_step_duration_seconds_count ",
                                  engine_steps, "\n")};
}

// Two steps of two seconds each, which begin with the report of step 3.
Window MakeWindow() {
  return {.steps = {Step(3, 10, 100), Step(4, 12, 40), Step(5, 14, 80)},
          .begin = {Trainer(10, 5, 1), Rollout(10, 3, 2, 1000, 50)},
          .end = {Trainer(14, 8, 2), Rollout(15, 7, 4.5, 1120, 80)},
          .answer_tokens = {1, 2, 3, 14}};
}

TEST(MeasureTest, TheTimeOfAStepIsThatBetweenReports) {
  auto figures = MeasureWindow(MakeWindow());

  EXPECT_THAT(figures["seconds_per_step"], IsNear(2.0));
  EXPECT_THAT(figures["steps_per_second"], IsNear(0.5));
  // The tokens of the first report were trained before the window.
  EXPECT_THAT(figures["tokens_trained_per_second"], IsNear(30.0));
}

TEST(MeasureTest, ASharePartsTheTimeBetweenTheReadsOfItsDaemon) {
  auto figures = MeasureWindow(MakeWindow());

  EXPECT_THAT(figures["trainer.idle_share"], IsNear(1.0 / 4));
  EXPECT_THAT(figures["trainer.optim_share"], IsNear(0.0));
  EXPECT_THAT(figures["rollout.idle_share"], IsNear(2.5 / 5));
  EXPECT_THAT(figures["trainer.busy_seconds_per_step"], IsNear(1.5));
  EXPECT_THAT(figures["rollout.busy_seconds_per_step"], IsNear(1.0));
}

TEST(MeasureTest, CpuSecondsAreSummedByRoleAndInAll) {
  auto figures = MeasureWindow(MakeWindow());

  EXPECT_THAT(figures["trainer.cpu_seconds_per_step"], IsNear(1.5));
  EXPECT_THAT(figures["rollout.cpu_seconds_per_step"], IsNear(2.0));
  EXPECT_THAT(figures["cpu_seconds_per_step"], IsNear(3.5));
}

TEST(MeasureTest, StalenessIsThatOfTrainedTokens) {
  auto figures = MeasureWindow(MakeWindow());

  EXPECT_THAT(figures["staleness_mean"], IsNear(1.5));
  EXPECT_THAT(figures["staleness_max"], IsNear(2.0));
}

TEST(MeasureTest, AnswersPerEngineStepAreTokensPerStep) {
  EXPECT_THAT(MeasureWindow(MakeWindow())["rollout.answers_per_engine_step"], IsNear(4.0));
}

TEST(MeasureTest, QuantilesAreValuesOfTheList) {
  EXPECT_EQ(Quantile({}, 0.5), 0);
  EXPECT_EQ(Quantile({5}, 0.99), 5);
  EXPECT_EQ(Quantile({14, 1, 3, 2}, 0.5), 2);
  EXPECT_EQ(Quantile({14, 1, 3, 2}, 1), 14);
}

TEST(MeasureTest, TheUnitOfAShareNamesItsMetric) {
  EXPECT_EQ(UnitOf("rollout.idle_share"),
            "of wall time: sluice_rollout_phase_seconds_total{phase=\"idle\"}");
  EXPECT_EQ(UnitOf("cpu_seconds_per_step"), "s");
  EXPECT_EQ(UnitOf("steps_per_second"), "1/s");
}

}  // namespace
}  // namespace sluice::bench
