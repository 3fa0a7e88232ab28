// The controller's process was paused, or its store was away for long: nothing that it could not
// see counts against daemons and jobs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/controller/world.h"

namespace sluice::controller {
namespace {

constexpr absl::Duration kHour = absl::Hours(1);

class AbsenceTest : public testing::Test {
 protected:
  AbsenceTest() {
    world_.StartFleet();
    job_ = world_.Run("digits");
    world_.Step(job_, 0);
  }

  // The loop's next turn after an hour.
  void ComeBack() {
    world_.clock.Advance(kHour);
    world_.core->OnAway(world_.now(), kHour);
  }

  World world_;
  std::string job_;
};

TEST_F(AbsenceTest, NoDaemonIsLostAndNoJobStalls) {
  ComeBack();
  world_.core->Tick(world_.now());
  world_.Commit();

  EXPECT_EQ(world_.State(job_), JobState::kRunning);
  for (const auto& [id, daemon] : world_.core->fleet().daemons())
    EXPECT_TRUE(daemon.present()) << id;
  EXPECT_TRUE(world_.job(job_).record.conditions.empty());
  world_.Pass(absl::Seconds(30));
  EXPECT_EQ(world_.State(job_), JobState::kRunning);
}

TEST_F(AbsenceTest, ADaemonWhoseConnectionBrokeMeanwhileHasTheGraceToComeBack) {
  world_.core->StreamClosed(world_.now(), "trainer-0", world_.actors["trainer-0"].stream);
  ComeBack();
  world_.actors["trainer-0"].silent = true;
  world_.Pass(kGrace - absl::Seconds(1));
  EXPECT_EQ(world_.State(job_), JobState::kRunning);

  world_.Pass(absl::Seconds(4));
  EXPECT_EQ(world_.State(job_), JobState::kRecovering) << "it is gone";
}

TEST_F(AbsenceTest, ARebuiltStoreIsAnEventOfEachJobThatHasNotEnded) {
  world_.core->OnStoreRebuilt(world_.now());
  world_.Commit();
  EXPECT_EQ(world_.Events(job_).back().code, "store_rebuilt");
}

}  // namespace
}  // namespace sluice::controller
