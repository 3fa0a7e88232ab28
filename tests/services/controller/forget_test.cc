#include <gmock/gmock.h>

#include "tests/services/controller/world.h"

// Daemons that are lost for good.
namespace sluice::controller {
namespace {

class ForgetTest : public testing::Test {
 protected:
  ForgetTest() { world_.StartFleet(2); }

  // Lets time pass in long steps, so that all daemons that live are heard in each.
  void PassMost(absl::Duration time) { world_.Pass(time, absl::Seconds(5)); }

  bool Known(const std::string& id) {
    const bool known = world_.core->fleet().daemons().contains(id);
    EXPECT_EQ(known, world_.store()->Get(DaemonKey(id)).ok()) << id;
    return known;
  }

  // Ends a daemon in an orderly way.
  void Leave(const std::string& id) {
    world_.actors[id].draining = true;
    world_.Settle();
    world_.Kill(id);
  }

  std::string StateOf(const std::string& id) {
    return std::string(StateText(world_.core->fleet().daemons().at(id)));
  }

  World world_;
};

TEST_F(ForgetTest, ADaemonThatIsLostForAnHourIsForgottenWithItsRecord) {
  world_.Settle();
  world_.Kill("rollout-0");
  PassMost(absl::Minutes(59));
  EXPECT_TRUE(Known("rollout-0"));

  PassMost(absl::Minutes(2));
  EXPECT_FALSE(Known("rollout-0"));
  EXPECT_TRUE(Known("rollout-1"));
  EXPECT_TRUE(Known("queue-0"));
}

TEST_F(ForgetTest, ADaemonThatEndedInAnOrderlyWayHasLeftAndIsForgottenToo) {
  world_.Settle();
  Leave("rollout-0");
  world_.Kill("rollout-1");
  PassMost(absl::Minutes(1));
  EXPECT_EQ(StateOf("rollout-0"), "left");
  EXPECT_EQ(StateOf("rollout-1"), "lost");

  world_.Restart();
  EXPECT_EQ(StateOf("rollout-0"), "left") << "it is stored";
  PassMost(absl::Minutes(61));
  EXPECT_FALSE(Known("rollout-0"));
  EXPECT_FALSE(Known("rollout-1"));
}

TEST_F(ForgetTest, TheHourCountsFromWhenThisControllerFirstSawTheDaemonAsLost) {
  world_.Settle();
  world_.Kill("rollout-0");
  PassMost(absl::Minutes(50));
  world_.Restart();
  PassMost(absl::Minutes(50));
  EXPECT_TRUE(Known("rollout-0"));
  PassMost(absl::Minutes(11));
  EXPECT_FALSE(Known("rollout-0"));
  EXPECT_TRUE(Known("rollout-1")) << "it came back";
}

TEST_F(ForgetTest, TheTimeInWhichTheControllerWasAwayDoesNotCount) {
  world_.Settle();
  world_.Kill("rollout-0");
  PassMost(absl::Minutes(1));
  world_.clock.Advance(absl::Hours(2));
  world_.core->OnAway(world_.now(), absl::Hours(2));
  PassMost(absl::Minutes(1));
  EXPECT_TRUE(Known("rollout-0"));
}

TEST_F(ForgetTest, AQueueStaysUntilItHasFreedTheDataOfItsJobs) {
  const std::string job = world_.Run("digits");
  world_.Kill("queue-0");
  PassMost(absl::Minutes(90));
  ASSERT_EQ(world_.State(job), JobState::kFailed) << "limits.stall_fail";
  EXPECT_TRUE(Known("queue-0")) << "it has the data of the ended job";

  world_.Start("queue-0", Role::kQueue);
  world_.Settle();
  ASSERT_EQ(world_.job(job).record.stage, Stage::kOver);
  world_.Kill("queue-0");
  PassMost(absl::Minutes(61));
  EXPECT_FALSE(Known("queue-0"));
}

TEST_F(ForgetTest, TheQueueOfAPausedJobStays) {
  const std::string job = world_.Run("digits");
  ASSERT_TRUE(world_.core->Pause(world_.now(), job).ok());
  world_.Leave();
  world_.Leave();
  ASSERT_EQ(world_.State(job), JobState::kPaused);
  Leave("queue-0");
  PassMost(absl::Minutes(90));
  EXPECT_TRUE(Known("queue-0"));
}

TEST_F(ForgetTest, ADrainedDaemonStaysUntilTheDrainIsEnded) {
  ASSERT_EQ(world_.core->Drain(world_.now(), "rollout-0", true), absl::OkStatus());
  world_.Settle();
  world_.Kill("rollout-0");
  PassMost(absl::Minutes(90));
  EXPECT_TRUE(Known("rollout-0"));

  // The end of the drain and the tick that forgets it may be in one transaction.
  ASSERT_EQ(world_.core->Drain(world_.now(), "rollout-0", false), absl::OkStatus());
  world_.core->Tick(world_.now());
  world_.Commit();
  EXPECT_FALSE(Known("rollout-0"));
  world_.Start("rollout-0", Role::kRollout);
  EXPECT_TRUE(Known("rollout-0"));
}

TEST_F(ForgetTest, WhoComesBackUnderAForgottenIdGetsAHigherIncarnationAlsoAfterARestart) {
  for (int i = 0; i < 4; ++i) world_.Start("rollout-0", Role::kRollout);
  world_.Settle();
  ASSERT_EQ(world_.actors["rollout-0"].incarnation, 5);
  const World::Actor cut_off = world_.actors["rollout-0"];
  world_.Kill("rollout-0");
  PassMost(absl::Minutes(61));
  ASSERT_FALSE(Known("rollout-0"));
  EXPECT_EQ(world_.store()->Get(FloorKey())->value, "5");

  // The process was cut off and calls again: it must register, and is a new incarnation, because
  // another process may have had its id meanwhile.
  world_.actors["rollout-0"] = cut_off;
  EXPECT_EQ(ReasonOf(world_.Beat("rollout-0")), "GONE");
  world_.Restart();
  ASSERT_TRUE(world_.Reregister("rollout-0").ok());
  EXPECT_EQ(world_.actors["rollout-0"].incarnation, 6);
  world_.actors["rollout-0"].incarnation = 5;
  EXPECT_EQ(ReasonOf(world_.Beat("rollout-0")), "FENCED");

  world_.Start("rollout-7", Role::kRollout);
  EXPECT_EQ(world_.actors["rollout-7"].incarnation, 6) << "the floor is that of the fleet";
  world_.Start("rollout-7", Role::kRollout);
  EXPECT_EQ(world_.actors["rollout-7"].incarnation, 7);
}

TEST_F(ForgetTest, ManyLostDaemonsAreForgottenInSeveralTransactions) {
  world_.Settle();
  RegisterInput input;
  input.daemon.role = Role::kReward;
  input.daemon.protocol_min = input.daemon.protocol_max = kProtocol;
  for (int i = 0; i < 600; ++i) {
    input.daemon.id = absl::StrCat("pod-", i);
    ASSERT_TRUE(world_.core->Register(world_.now(), input).ok());
  }
  world_.Commit();
  ASSERT_EQ(world_.store()->List("daemons/")->size(), 605u);
  PassMost(absl::Minutes(61));
  EXPECT_EQ(world_.core->fleet().daemons().size(), 5u);
  EXPECT_EQ(world_.store()->List("daemons/")->size(), 5u);
}

}  // namespace
}  // namespace sluice::controller
