#include "tools/sluice/steps_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "sluice/job/v1/job.pb.h"
#include "tools/sluice/commands.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

job::v1::StepReport ReportOf(int64_t k) {
  job::v1::StepReport step;
  step.set_k(k);
  step.mutable_version()->set_incarnation(2);
  step.mutable_version()->set_number(k + 1);
  step.mutable_at()->set_seconds(1'700'000'000);
  (*step.mutable_values())["reward_mean"] = 0.123456;
  (*step.mutable_values())["tokens"] = 198400;
  (*step.mutable_values())["lr"] = 1e-6;
  (*step.mutable_values())["clip_low"] = 0;
  (*step.mutable_values())["staleness_max"] = 10;
  (*step.mutable_staleness())["2"] = 5;
  (*step.mutable_staleness())["10"] = 5;
  return step;
}

TEST(StepsCommandTest, TheUsualColumnsAreThoseThatTheJobHas) {
  job::v1::StepReport evaluated = ReportOf(8);
  (*evaluated.mutable_values())["eval/heldout/pass@1"] = 0.5;

  const auto rows = StepRows({ReportOf(7), evaluated}, {});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_THAT(*rows, ElementsAre(ElementsAre("step", "reward_mean", "lr", "tokens", "staleness_max",
                                             "eval/heldout/pass@1"),
                                 ElementsAre("7", "0.1235", "1e-06", "198400", "10", "-"),
                                 ElementsAre("8", "0.1235", "1e-06", "198400", "10", "0.5")));
}

TEST(StepsCommandTest, ColumnsAreShownInTheOrderAskedFor) {
  const auto rows = StepRows({ReportOf(7)}, {"version", "clip_low", "incarnation"});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_THAT(*rows, ElementsAre(ElementsAre("version", "clip_low", "incarnation"),
                                 ElementsAre("8", "0", "2")));
}

TEST(StepsCommandTest, AllColumnsAreEachOnce) {
  const auto rows = StepRows({ReportOf(7)}, {"all"});
  ASSERT_TRUE(rows.ok());
  EXPECT_THAT(rows->front(), ElementsAre("step", "version", "incarnation", "time", "clip_low", "lr",
                                         "reward_mean", "staleness_max", "tokens"));
}

TEST(StepsCommandTest, AColumnThatNoStepHasIsRefusedWithThoseThereAre) {
  const auto rows = StepRows({ReportOf(7)}, {"reward"});
  EXPECT_EQ(rows.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      rows.status().message(),
      HasSubstr(
          "no step has a column \"reward\"; there are clip_low, incarnation, lr, reward_mean"));
}

TEST(StepsCommandTest, ItsCommandLineTakesSeveralColumnsInAnyPlace) {
  for (const char* line : {"digits --every 10 --columns step,reward_mean,entropy",
                           "--columns eval/x/pass@1,step digits --last 20"}) {
    CLI::App app;
    (void)StepsCommands().front().bind(&app);
    EXPECT_NO_THROW(app.parse(line)) << line;
  }

  for (const char* line : {"digits --last 0", "digits --every -1", "--last 3"}) {
    CLI::App app;
    (void)StepsCommands().front().bind(&app);
    EXPECT_THROW(app.parse(line), CLI::ParseError) << line;
  }
}

TEST(StepsCommandTest, AsJsonAStepHasTheFormOfTheMetricsFile) {
  EXPECT_EQ(
      StepJson(ReportOf(7)),
      R"({"step":7,"version":8,"incarnation":2,"time":1700000000.0,"clip_low":0.0,"lr":1e-06,)"
      R"("reward_mean":0.123456,"staleness_max":10.0,"tokens":198400.0,"staleness":{"2":5,)"
      R"("10":5}})");
}

}  // namespace
}  // namespace sluice::cli
