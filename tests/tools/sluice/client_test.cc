#include "tools/sluice/client.h"

#include <gtest/gtest.h>

namespace sluice::cli {
namespace {

job::v1::JobStatus StatusOf(job::v1::JobState state, const char* code, const char* message) {
  job::v1::JobStatus status;
  status.set_name("digits");
  status.set_state(state);
  status.set_code(code);
  status.set_message(message);
  return status;
}

TEST(StateLine, LeavesTheCauseOfAFailureToTheErrorLine) {
  const auto finishing = StatusOf(job::v1::JOB_STATE_FINISHING, "SLUICE-CTL-0010", "no row");
  const auto failed = StatusOf(job::v1::JOB_STATE_FAILED, "SLUICE-CTL-0010", "no row");
  EXPECT_EQ(StateLine(finishing), "digits FINISHING");
  EXPECT_EQ(StateLine(failed), "digits FAILED");
  EXPECT_EQ(ErrorLine(failed), "error SLUICE-CTL-0010: job digits FAILED: no row");
}

TEST(StateLine, TellsWhyAJobIsInAnyOtherState) {
  EXPECT_EQ(StateLine(StatusOf(job::v1::JOB_STATE_RUNNING, "", "")), "digits RUNNING");
  EXPECT_EQ(
      StateLine(StatusOf(job::v1::JOB_STATE_RECOVERING, "SLUICE-CTL-0011", "queue q is lost")),
      "digits RECOVERING: queue q is lost");
  EXPECT_EQ(StateLine(StatusOf(job::v1::JOB_STATE_FINISHING, "", "ended by limits.wall 1h")),
            "digits FINISHING: ended by limits.wall 1h");
}

}  // namespace
}  // namespace sluice::cli
