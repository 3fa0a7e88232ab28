#include "tools/sluice/why_text.h"

#include <gtest/gtest.h>

#include "common/rpc/convert.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::cli {
namespace {

// A job in step 75, whose batch waits for a member that rollout-1 samples.
class WhyTextTest : public testing::Test {
 protected:
  WhyTextTest() {
    job_.set_name("gsm");
    job_.set_state(job::v1::JOB_STATE_RUNNING);
    job_.set_step(74);
    Add(common::v1::NODE_KIND_JOB, common::v1::NODE_KIND_DAEMON, 9, "");
    Add(common::v1::NODE_KIND_STEP, common::v1::NODE_KIND_BATCH, 8, "trainer-0 waits for batch 75")
        ->mutable_waiter()
        ->set_id("75");
    Add(common::v1::NODE_KIND_BATCH, common::v1::NODE_KIND_GROUP, 30,
        "batch 75 has 63 of 64 groups");
    Add(common::v1::NODE_KIND_GROUP, common::v1::NODE_KIND_TRAJECTORY, 30,
        "group 1:02 lacks member 3 of 8");
    Add(common::v1::NODE_KIND_TRAJECTORY, common::v1::NODE_KIND_DAEMON, 30,
        "rollout-1 has had member 3 for 30s")
        ->set_next("without rollout-1, member 3 goes on at another rollout from token 7904");
  }

  common::v1::WaitEdge* Add(common::v1::NodeKind waiter, common::v1::NodeKind on, double since,
                            const std::string& cause) {
    common::v1::WaitEdge* edge = why_.add_chain();
    edge->mutable_waiter()->set_kind(waiter);
    edge->mutable_on()->set_kind(on);
    *edge->mutable_since() = rpc::ToProto(absl::Seconds(since));
    edge->set_cause(cause);
    return edge;
  }

  // Adds that rollout-1 is silent.
  void Suspect() {
    common::v1::WaitEdge* edge = Add(common::v1::NODE_KIND_DAEMON, common::v1::NODE_KIND_DAEMON, 7,
                                     "rollout-1 has been silent for 7s (suspect)");
    edge->set_next("rollout-1 is given up");
    *edge->mutable_next_in() = rpc::ToProto(absl::Seconds(3));
    edge->set_hint("see the log of rollout-1, and start it again");
    why_.add_silent("rollout-1");
  }

  job::v1::JobStatus job_;
  job::v1::WhyResponse why_;
};

TEST_F(WhyTextTest, AChainIsReadFromTheStepToItsRootThenWhatComesByItselfAndWhatOneCouldDo) {
  Suspect();
  EXPECT_EQ(WhyText(job_, why_, 1000),
            "gsm has waited 9s in step 75: batch 75 has 63 of 64 groups <- group 1:02 lacks member "
            "3 of 8 <- rollout-1 has had member 3 for 30s"
            " <- rollout-1 has been silent for 7s (suspect)\n"
            "by itself: in 3s rollout-1 is given up; without rollout-1, member 3 goes on at "
            "another rollout from token 7904\n"
            "you could: see the log of rollout-1, and start it again\n");
}

TEST_F(WhyTextTest, ALongChainTakesALineALink) {
  EXPECT_EQ(WhyText(job_, why_, 40),
            "gsm has waited 9s in step 75: batch 75 has 63 of 64 groups\n"
            "  <- group 1:02 lacks member 3 of 8\n"
            "  <- rollout-1 has had member 3 for 30s\n"
            "by itself: without rollout-1, member 3 goes on at another rollout from token 7904\n");
}

TEST_F(WhyTextTest, AJobThatMovesSaysSoAndPromisesNothing) {
  why_.set_moving(true);
  EXPECT_EQ(WhyText(job_, why_, 1000),
            "gsm is moving, in step 75 for 9s. At this moment: batch 75 has 63 of 64 groups <- "
            "group 1:02 lacks member 3 of 8 <- "
            "rollout-1 has had member 3 for 30s\n");
}

TEST_F(WhyTextTest, AJobThatMovesSaysWhatComesByItselfOnceItsChainEndsAtSomebodyWhoDoesNothing) {
  why_.set_moving(true);
  common::v1::WaitEdge* edge = Add(common::v1::NODE_KIND_DAEMON, common::v1::NODE_KIND_DAEMON, 0,
                                   "rollout-1 does not answer");
  edge->mutable_waiter()->set_id("rollout-1");
  EXPECT_EQ(WhyText(job_, why_, 1000).find("by itself: "), std::string::npos)
      << "it waits for another";

  edge->mutable_on()->set_id("rollout-1");
  EXPECT_EQ(WhyText(job_, why_, 1000),
            "gsm is moving, in step 75 for 9s. At this moment: batch 75 has 63 of 64 groups <- "
            "group 1:02 lacks member 3 of 8 <- "
            "rollout-1 has had member 3 for 30s <- rollout-1 does not answer\n"
            "by itself: without rollout-1, member 3 goes on at another rollout from token 7904\n");
}

TEST_F(WhyTextTest, AJobThatStartsIsSaidToStartAndASilentDaemonBesideTheChainIsNamed) {
  job_.set_state(job::v1::JOB_STATE_STARTING);
  why_.clear_chain();
  Add(common::v1::NODE_KIND_JOB, common::v1::NODE_KIND_DAEMON, 70,
      "trainer-0 is not ready: loading");
  why_.add_silent("reward-0");
  EXPECT_EQ(WhyText(job_, why_),
            "gsm has been STARTING for 1m10s: trainer-0 is not ready: loading\nsilent: reward-0\n");
}

TEST_F(WhyTextTest, AJobThatHasEndedOrTellsNothingWaitsForNothing) {
  why_.clear_chain();
  EXPECT_EQ(WhyText(job_, why_), "gsm is RUNNING and waits for nothing that its daemons report\n");
  job_.set_state(job::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(WhyText(job_, why_), "gsm is SUCCEEDED and waits for nothing\n");
}

}  // namespace
}  // namespace sluice::cli
