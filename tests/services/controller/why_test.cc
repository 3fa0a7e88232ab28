#include "services/controller/core/why.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::controller {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const Node kJob = {"JOB", "job", ""};
Node Daemon(const std::string& id) { return {"DAEMON", id, id}; }
Node Step(const std::string& k) { return {"STEP", k, "trainer-0"}; }
Node Batch(const std::string& k) { return {"BATCH", k, "queue"}; }
Node Group(const std::string& id) { return {"GROUP", id, "queue"}; }
Node Member(const std::string& id) { return {"TRAJECTORY", id, "queue"}; }
Node Task(const std::string& id) { return {"TASK", id, "queue"}; }

Edge Waiting(Node waiter, Node on, double seconds, std::string cause) {
  return {std::move(waiter), std::move(on), absl::Seconds(seconds), std::move(cause), ""};
}
// A fault is an edge from a node to itself.
Edge Fault(const std::string& id, double seconds) {
  return Waiting(Daemon(id), Daemon(id), seconds, id + ", silent");
}

// A job in its 75th step. The trainer waits for its batch, which lacks a group of each rollout.
class WhyTest : public testing::Test {
 protected:
  WhyTest() {
    waits_.root = kJob;
    waits_.roles = {{"queue-0", "queue"},
                    {"trainer-0", "trainer"},
                    {"rollout-0", "rollout"},
                    {"rollout-1", "rollout"},
                    {"reward-0", "reward"}};
    waits_.edges = {Waiting(kJob, Daemon("trainer-0"), 9, ""),
                    Waiting(Step("75"), Batch("75"), 8, "waits for batch 75"),
                    Waiting(Batch("75"), Group("a"), 20, "batch 75 lacks a"),
                    Waiting(Batch("75"), Group("b"), 12, "batch 75 lacks b"),
                    Waiting(Group("a"), Member("a/0"), 20, "a lacks 0"),
                    Waiting(Member("a/0"), Daemon("rollout-0"), 20, "rollout-0 has a/0"),
                    Waiting(Group("b"), Member("b/3"), 12, "b lacks 3"),
                    Waiting(Member("b/3"), Daemon("rollout-1"), 12, "rollout-1 has b/3")};
  }

  std::vector<std::string> Causes() const {
    std::vector<std::string> causes;
    for (const Edge& edge : FindChain(waits_)) causes.push_back(edge.cause);
    return causes;
  }

  Waits waits_;
};

TEST_F(WhyTest, WithoutAFaultTheLongestWaitsAreFollowedFromTheJobToWhoHoldsTheWork) {
  EXPECT_THAT(Causes(), ElementsAre("", "waits for batch 75", "batch 75 lacks a", "a lacks 0",
                                    "rollout-0 has a/0"));
}

TEST_F(WhyTest, ASilentDaemonIsTheRootThoughOthersWaitLonger) {
  waits_.silent = {"rollout-1"};
  EXPECT_THAT(Causes(), ElementsAre("", "waits for batch 75", "batch 75 lacks b", "b lacks 3",
                                    "rollout-1 has b/3", "rollout-1 does not answer"));
}

TEST_F(WhyTest, WhatTheControllerKnowsOfTheSilentOneSaysMoreThanItsSilence) {
  waits_.silent = {"rollout-1"};
  waits_.edges.push_back(Fault("rollout-1", 7));
  EXPECT_EQ(Causes().back(), "rollout-1, silent");
}

TEST_F(WhyTest, AFaultThatNothingOnTheWayWaitsForIsNotBlamed) {
  waits_.silent = {"reward-0"};
  EXPECT_EQ(Causes().back(), "rollout-0 has a/0");
}

TEST_F(WhyTest, ATaskNobodyTookLeadsToTheRewardsAndTheirFault) {
  waits_.edges.push_back(Waiting(Group("b"), Task("b/1/math"), 5, "b lacks the math of 1"));
  waits_.edges.push_back(
      Waiting(Task("b/1/math"), {"DAEMON", "reward", "reward"}, 5, "no reward has taken it"));
  waits_.silent = {"reward-0"};

  EXPECT_THAT(Causes(),
              ElementsAre("", "waits for batch 75", "batch 75 lacks b", "b lacks the math of 1",
                          "no reward has taken it", "", "reward-0 does not answer"));
}

TEST_F(WhyTest, ARoleWithoutDaemonsIsAFaultOfItsOwn) {
  waits_.edges.push_back(
      Waiting(Member("c/0"), {"DAEMON", "rollout", "rollout"}, 3, "nobody holds c/0"));
  waits_.edges.push_back(Waiting(Group("b"), Member("c/0"), 3, "b lacks c/0"));
  waits_.edges.push_back(Fault("rollout", 0));
  EXPECT_EQ(Causes().back(), "rollout, silent");
}

TEST_F(WhyTest, ASilentQueueIsFoundThoughItTellsNoEdges) {
  waits_.edges.resize(2);  // The others are the queue's.
  waits_.silent = {"queue-0"};
  EXPECT_THAT(Causes(), ElementsAre("", "waits for batch 75", "", "queue-0 does not answer"));
}

TEST_F(WhyTest, ASilentTrainerIsBlamedInAStartForWhichItsRolloutsWaitToo) {
  waits_.edges = {Waiting(kJob, Daemon("rollout-0"), 30, "rollout-0 is not ready"),
                  Waiting(kJob, Daemon("trainer-0"), 30, "trainer-0 is not ready"),
                  Waiting(Daemon("rollout-0"), {"VERSION", "first", "trainer"}, 29,
                          "rollout-0 waits for weights")};
  EXPECT_EQ(Causes().front(), "trainer-0 is not ready")
      << "trainers come before rollouts, which wait for them";

  waits_.silent = {"trainer-0"};
  EXPECT_THAT(Causes(), ElementsAre("trainer-0 is not ready", "trainer-0 does not answer"));

  // The same holds where the trainer itself has said that it is ready.
  waits_.edges.erase(waits_.edges.begin() + 1);
  EXPECT_THAT(Causes(), ElementsAre("rollout-0 is not ready", "rollout-0 waits for weights", "",
                                    "trainer-0 does not answer"));
}

TEST_F(WhyTest, WaitsInACircleEnd) {
  waits_.edges.push_back(
      Waiting(Daemon("rollout-0"), {"CALL", "Admit", "rollout-0"}, 1, "rollout-0 asks for work"));
  waits_.edges.push_back(
      Waiting({"CALL", "Admit", "rollout-0"}, {"SLOT", "76..77", "trainer"}, 1, "no slot is free"));

  EXPECT_THAT(Causes(),
              ElementsAre("", "waits for batch 75", "batch 75 lacks a", "a lacks 0",
                          "rollout-0 has a/0", "rollout-0 asks for work", "no slot is free"));
}

TEST_F(WhyTest, CallsOfOneNameAreOfTheirDaemons) {
  waits_.edges = {Waiting(kJob, {"CALL", "Admit", "rollout-0"}, 9, "job"),
                  Waiting({"CALL", "Admit", "rollout-1"}, {"SLOT", "1", ""}, 9, "other"),
                  Waiting({"CALL", "Admit", "rollout-0"}, {"SLOT", "1", ""}, 1, "own")};
  EXPECT_THAT(Causes(), ElementsAre("job", "own"));
}

TEST_F(WhyTest, WorkThatNobodyTookLeadsToTheCallsOfItsRoleWorkThatSomebodyHasDoesNot) {
  waits_.edges.resize(2);
  waits_.edges.push_back(
      Waiting(Batch("75"), {"DAEMON", "rollout", "rollout"}, 3, "no group is open"));
  waits_.edges.push_back(Waiting({"CALL", "Admit", "rollout-1"}, {"BYTES", "7/8", "trainer"}, 3,
                                 "the quota is reserved"));
  waits_.edges.push_back(
      Waiting(Daemon("rollout-0"), {"CALL", "decode", ""}, 0, "rollout-0 samples"));

  EXPECT_THAT(Causes(),
              ElementsAre("", "waits for batch 75", "no group is open", "the quota is reserved"));

  waits_.edges[2] = Waiting(Batch("75"), Daemon("rollout-1"), 3, "rollout-1 has it");
  EXPECT_THAT(Causes(), ElementsAre("", "waits for batch 75", "rollout-1 has it"));
}

TEST_F(WhyTest, AJobWithoutWaitsHasNoChain) {
  waits_.edges.clear();
  EXPECT_THAT(Causes(), IsEmpty());
  EXPECT_EQ(ChainText({}), "");
}

TEST_F(WhyTest, TheTextLeavesOutWhatTheBatchSaysBetterAndEndsWithWhatCanBeDone) {
  waits_.silent = {"rollout-1"};
  EXPECT_EQ(ChainText(FindChain(waits_)),
            "batch 75 lacks b <- b lacks 3 <- rollout-1 has b/3 <- rollout-1 does not answer; you "
            "could: see the log of rollout-1; "
            "if it hangs, kill it: its work goes on elsewhere");
}

}  // namespace
}  // namespace sluice::controller
