#include "services/controller/core/fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace sluice::controller {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FleetTest : public testing::Test {
 protected:
  FleetTest()
      : fleet_({[this](Instant, const Daemon& daemon, int64_t incarnation, const std::string&) {
                  gone_.push_back(daemon.record.id + "/" + std::to_string(incarnation));
                },
                [this](Instant, const Daemon& daemon) { back_.push_back(daemon.record.id); }}) {}

  Instant Now() { return {clock_.Now(), clock_.Monotonic()}; }
  absl::StatusOr<RegisterOutput> Register(const std::string& boot, Role role = Role::kRollout,
                                          uint32_t min = 1, uint32_t max = 1) {
    RegisterInput input;
    input.daemon.id = "r0";
    input.daemon.role = role;
    input.daemon.boot = boot;
    input.daemon.protocol_min = min;
    input.daemon.protocol_max = max;
    return fleet_.Register(Now(), input);
  }

  void Pass(absl::Duration time) {
    clock_.Advance(time);
    fleet_.Tick(Now());
  }

  Liveness State() { return fleet_.Find("r0")->liveness; }

  ManualClock clock_;
  Fleet fleet_;
  std::vector<std::string> gone_, back_;  // ID/INCARNATION of lost daemons; ids of those back.
};

TEST_F(FleetTest, TheSameBootKeepsItsIncarnationAndAnotherGetsTheNext) {
  EXPECT_EQ(Register("a")->incarnation, 1);
  EXPECT_TRUE(Register("a")->repeat);
  EXPECT_EQ(Register("a")->incarnation, 1);
  EXPECT_THAT(gone_, IsEmpty());
  EXPECT_EQ(Register("b")->incarnation, 2);
  EXPECT_THAT(gone_, ElementsAre("r0/1"));
}

TEST_F(FleetTest, ASecondProcessUnderTheIdOfOneThatBeatsIsRefused) {
  ASSERT_TRUE(Register("a").ok());
  ASSERT_TRUE(fleet_.Heartbeat(Now(), "r0", 1, 7).ok());
  const absl::Status refused = Register("b").status();
  EXPECT_EQ(ReasonOf(refused), "NOT_YET");
  fleet_.StreamClosed(Now(), "r0", 7);
  EXPECT_EQ(Register("b")->incarnation, 2);
}

TEST_F(FleetTest, ABrokenStreamIsSuspectAtOnceAndLostAfterThreeSeconds) {
  ASSERT_TRUE(Register("a").ok());
  ASSERT_TRUE(fleet_.Heartbeat(Now(), "r0", 1, 7).ok());
  EXPECT_EQ(State(), Liveness::kLive);
  fleet_.StreamClosed(Now(), "r0", 7);
  EXPECT_EQ(State(), Liveness::kSuspect);

  Pass(absl::Seconds(2));
  EXPECT_EQ(State(), Liveness::kSuspect);
  Pass(absl::Seconds(1));
  EXPECT_EQ(State(), Liveness::kLost);
  EXPECT_THAT(gone_, ElementsAre("r0/1"));
}

TEST_F(FleetTest, SilenceIsSuspectAfterSixSecondsAndLostAfterTen) {
  ASSERT_TRUE(Register("a").ok());
  ASSERT_TRUE(fleet_.Heartbeat(Now(), "r0", 1, 7).ok());
  Pass(absl::Seconds(6));
  EXPECT_EQ(State(), Liveness::kSuspect);

  Pass(absl::Seconds(3));
  EXPECT_THAT(gone_, IsEmpty());
  Pass(absl::Seconds(1));
  EXPECT_EQ(State(), Liveness::kLost);
}

TEST_F(FleetTest, ALateHeartbeatBringsALostDaemonBackUnderItsIncarnation) {
  ASSERT_TRUE(Register("a").ok());
  ASSERT_TRUE(fleet_.Heartbeat(Now(), "r0", 1, 7).ok());
  Pass(absl::Seconds(11));
  ASSERT_TRUE(fleet_.Heartbeat(Now(), "r0", 1, 7).ok());

  EXPECT_EQ(State(), Liveness::kLive);
  EXPECT_THAT(back_, ElementsAre("r0"));
  EXPECT_THAT(gone_, ElementsAre("r0/1"));
}

TEST_F(FleetTest, ADaemonWhoseBrokenConnectionIsMadeAgainIsBackWithItsFirstHeartbeat) {
  ASSERT_TRUE(Register("a").ok());
  ASSERT_TRUE(fleet_.Heartbeat(Now(), "r0", 1, 7).ok());
  fleet_.StreamClosed(Now(), "r0", 7);
  Pass(absl::Seconds(3));
  ASSERT_THAT(gone_, ElementsAre("r0/1"));

  ASSERT_TRUE(Register("a").ok());
  EXPECT_THAT(back_, IsEmpty());
  ASSERT_TRUE(fleet_.Heartbeat(Now(), "r0", 1, 8).ok());
  ASSERT_TRUE(fleet_.Heartbeat(Now(), "r0", 1, 8).ok());
  EXPECT_THAT(back_, ElementsAre("r0"));
}

TEST_F(FleetTest, TheSuccessorOfALostDaemonIsNewAndNotBack) {
  ASSERT_TRUE(Register("a").ok());
  ASSERT_TRUE(fleet_.Heartbeat(Now(), "r0", 1, 7).ok());
  fleet_.StreamClosed(Now(), "r0", 7);
  Pass(absl::Seconds(3));

  ASSERT_TRUE(Register("b").ok());
  ASSERT_TRUE(fleet_.Heartbeat(Now(), "r0", 2, 8).ok());
  EXPECT_THAT(back_, IsEmpty());
}

TEST_F(FleetTest, AnOldStreamThatEndsLateDoesNotHurtTheNewOne) {
  ASSERT_TRUE(Register("a").ok());
  ASSERT_TRUE(fleet_.Heartbeat(Now(), "r0", 1, 7).ok());
  ASSERT_TRUE(fleet_.Heartbeat(Now(), "r0", 1, 8).ok());
  fleet_.StreamClosed(Now(), "r0", 7);
  EXPECT_EQ(State(), Liveness::kLive);
}

TEST_F(FleetTest, ADrainingDaemonIsGoneWhenItsStreamEnds) {
  ASSERT_TRUE(Register("a").ok());
  (*fleet_.Heartbeat(Now(), "r0", 1, 7))->draining = true;
  fleet_.StreamClosed(Now(), "r0", 7);
  EXPECT_EQ(State(), Liveness::kLost);
  EXPECT_EQ(StateText(*fleet_.Find("r0")), "left");

  ASSERT_TRUE(Register("b").ok());
  EXPECT_EQ(StateText(*fleet_.Find("r0")), "suspect");
  Pass(kLostAfter);
  EXPECT_EQ(StateText(*fleet_.Find("r0")), "lost") << "the successor did not drain";
}

TEST_F(FleetTest, AHeartbeatOfAnOldIncarnationIsFenced) {
  ASSERT_TRUE(Register("a").ok());
  ASSERT_TRUE(Register("b").ok());
  EXPECT_EQ(ReasonOf(fleet_.Heartbeat(Now(), "r0", 1, 7).status()), "FENCED");
  EXPECT_EQ(ReasonOf(fleet_.Heartbeat(Now(), "nobody", 1, 7).status()), "GONE");
}

TEST_F(FleetTest, AnotherProtocolIsRefusedWithBothRanges) {
  const absl::Status status = Register("a", Role::kRollout, 2, 3).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("2 to 3"));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("1 to 1"));
}

TEST_F(FleetTest, AnIdStaysWithItsRole) {
  ASSERT_TRUE(Register("a").ok());
  EXPECT_EQ(ReasonOf(Register("a", Role::kReward).status()), "CONFLICT");
}

TEST_F(FleetTest, AFurtherDaemonIsRefusedAtTheLimitAndAKnownOneIsNot) {
  ASSERT_TRUE(Register("a").ok());
  RegisterInput input;
  input.daemon.protocol_min = input.daemon.protocol_max = kProtocol;
  for (size_t i = 1; i < kMostDaemons; ++i) {
    input.daemon.id = "pod-" + std::to_string(i);
    ASSERT_TRUE(fleet_.Register(Now(), input).ok());
  }

  input.daemon.id = "one-more";
  const absl::Status refused = fleet_.Register(Now(), input).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DetailOf(refused).catalogue, "SLUICE-CTL-0032");
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("10000 daemons are registered"));
  EXPECT_TRUE(Register("b").ok());

  Pass(kLostAfter);
  (void)fleet_.Forget("pod-1");
  EXPECT_TRUE(fleet_.Register(Now(), input).ok());
}

TEST_F(FleetTest, AWildIncarnationOfOneDaemonDoesNotMakeThoseOfOthersOverflow) {
  RegisterInput input;
  input.daemon.id = "wild";
  input.daemon.protocol_min = input.daemon.protocol_max = kProtocol;
  input.daemon.incarnation = std::numeric_limits<int64_t>::max();
  ASSERT_TRUE(fleet_.Register(Now(), input).ok());
  Pass(kLostAfter);
  EXPECT_TRUE(fleet_.Forget("wild"));
  EXPECT_EQ(Register("a")->incarnation, fleet_.floor() + 1);
  EXPECT_GT(Register("b")->incarnation, fleet_.floor() + 1);
}

TEST_F(FleetTest, AfterTheControllersStartNobodyIsLostForTenSeconds) {
  DaemonRecord record;
  record.id = "r0";
  record.incarnation = 4;
  fleet_.Restore(Now(), record, true);
  Pass(absl::Seconds(9));
  EXPECT_EQ(State(), Liveness::kSuspect);

  ASSERT_TRUE(fleet_.Heartbeat(Now(), "r0", 4, 1).ok());
  Pass(absl::Seconds(2));
  EXPECT_EQ(State(), Liveness::kLive);
  EXPECT_THAT(gone_, IsEmpty());
}

}  // namespace
}  // namespace sluice::controller
