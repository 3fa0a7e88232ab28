#include <algorithm>

#include "tests/services/queue/core/harness.h"

// Every wait is explained: each parked call and each lease has an edge that says what it waits on,
// and edges join into chains.
namespace sluice::queue {
namespace {

using testing::HasSubstr;

// The first edge of this waiter; null if it has none.
const WaitEdge* From(const std::vector<WaitEdge>& edges, NodeKind kind, const std::string& id) {
  const auto it = std::find_if(edges.begin(), edges.end(), [&](const WaitEdge& e) {
    return e.waiter.kind == kind && e.waiter.id == id;
  });
  return it == edges.end() ? nullptr : &*it;
}

class ExplainTest : public testing::Test {
 protected:
  ExplainTest() { h.Start(); }
  // The causes along the chain that begins at batch k, by the first edge of each node. `last` is
  // the node where it ends. A node at fault has an edge to itself, so the length is limited.
  std::vector<std::string> Chain(int64_t k) {
    const std::vector<WaitEdge> edges = h.job().Explain(h.now);
    std::vector<std::string> causes;
    for (const WaitEdge* at = From(edges, NodeKind::kBatch, absl::StrCat(k));
         at != nullptr && causes.size() < 10; at = From(edges, at->on.kind, at->on.id)) {
      causes.push_back(at->cause);
      last = at->on;
    }
    return causes;
  }

  Harness h;
  Node last;
};

TEST_F(ExplainTest, ABatchOneGroupShortLeadsToTheMemberThatLacksAndWhoHoldsIt) {
  const auto admitted = h.Admitted(4);
  h.Sample(h.Rollout(), admitted->grants[0], admitted->grants[0].members[0], {{{1, 0}, 3, 0}});
  h.Sample(h.Rollout(), admitted->grants[0], admitted->grants[0].members[1], {{{1, 0}, 3, 0}});
  h.Sample(h.Rollout(), admitted->grants[1], admitted->grants[1].members[0], {{{1, 0}, 3, 0}});
  h.ScoreAll();

  const uint64_t waits = h.Send(h.Trainer(), AcquireBatch{.k = 0});
  ASSERT_FALSE(h.Answered(waits));
  h.Advance(absl::Seconds(9));

  EXPECT_THAT(Chain(0),
              testing::ElementsAre("batch 0 has 1 of 2 groups", "group 1:01 lacks member 1 of 2",
                                   "r1 has had member 1 for 9s, stored up to token 4"));
  EXPECT_EQ(last.id, "r1");
}

TEST_F(ExplainTest, ASealedMemberLeadsToItsTaskAndWhoWorksOnIt) {
  const auto admitted = h.Admitted(2);
  for (const Member& member : admitted->grants[0].members)
    h.Sample(h.Rollout(), admitted->grants[0], member, {{{1, 0}, 3, 0}});

  EXPECT_THAT(Chain(0), testing::ElementsAre("batch 0 has 0 of 2 groups",
                                             "group 1:00 lacks the reward of member 0 of 2",
                                             "no reward has taken task reward (pool cpu) for 0"));
  EXPECT_EQ(last.daemon, "reward");

  ASSERT_TRUE(h.Call<LeaseTasksAnswer>(h.Reward(),
                                       LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 1}}})
                  .ok());

  h.Advance(absl::Seconds(3));
  EXPECT_EQ(Chain(0).back(), "w1 has had task reward for 3s");
  EXPECT_EQ(last.id, "w1");
}

TEST_F(ExplainTest, TheEdgeOfATaskSaysHowManyTriesAreLeftAfterTheOneThatRuns) {
  const auto admitted = h.Admitted(2);
  for (const Member& member : admitted->grants[0].members)
    h.Sample(h.Rollout(), admitted->grants[0], member, {{{1, 0}, 3, 0}});

  // Each lease runs out, and the task is leased again.
  std::vector<std::string> next;
  for (uint32_t lease = 0; lease < h.spec().tasks[0].tries; ++lease) {
    ASSERT_TRUE(h.Call<LeaseTasksAnswer>(h.Reward(),
                                         LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 2}}})
                    .ok());
    const std::vector<WaitEdge> edges = h.job().Explain(h.now);
    const auto task = std::find_if(edges.begin(), edges.end(), [](const WaitEdge& edge) {
      return edge.waiter.kind == NodeKind::kTask && edge.on.id == "w1";
    });
    ASSERT_NE(task, edges.end());
    next.push_back(task->next);
    h.Advance(h.spec().lease + absl::Seconds(1));
  }

  EXPECT_THAT(next, testing::ElementsAre(HasSubstr("goes to another reward, 2 tries left"),
                                         HasSubstr("goes to another reward, 1 try left"),
                                         HasSubstr("member 0 is dropped as unscorable")));
  EXPECT_EQ(h.job().ledger().dropped.at("unscorable"), 2);
}

TEST_F(ExplainTest, AMemberThatNobodyHoldsWaitsForAnyRollout) {
  ASSERT_TRUE(h.Admitted(2).ok());
  ASSERT_TRUE(h.Call<ReleaseAnswer>(
                   {"controller", 0},
                   Release{.worker = "r1", .incarnation = 1, .reason = ReleaseReason::kLost})
                  .ok());

  EXPECT_EQ(Chain(0).back(), "nobody holds member 0");
  EXPECT_EQ(last.daemon, "rollout");
}

TEST_F(ExplainTest, WithoutAnOpenGroupTheBatchWaitsForARollout) {
  EXPECT_THAT(Chain(0).back(), HasSubstr("no group is open for step 0"));
  EXPECT_EQ(last.daemon, "rollout");
}

TEST_F(ExplainTest, ALeasedBatchIsItsTrainers) {
  h.SampleAll(h.Rollout(), *h.Admitted(4), {1, 0});
  h.ScoreAll();
  ASSERT_TRUE(h.Acquired(0).ok());
  EXPECT_THAT(Chain(0), testing::ElementsAre("t1 has had batch 0 for 0"));
}

TEST_F(ExplainTest, AFullWindowIsBlamedOnTheEngineThatLagsElseOnTheTrainer) {
  const auto admit_waits_on = [&] {
    while (h.Admitted(100).ok()) {
    }  // The last call parks.
    const std::vector<WaitEdge> edges = h.job().Explain(h.now);
    const WaitEdge* admit = From(edges, NodeKind::kCall, "Admit");
    return admit == nullptr ? Node() : admit->on;
  };

  EXPECT_EQ(admit_waits_on().kind, NodeKind::kSlot);
  EXPECT_EQ(admit_waits_on().daemon, "trainer");

  Harness fresh;
  fresh.Start();
  fresh.Load(fresh.Rollout("r2"), {1, 0});
  fresh.RunStep();  // r1 holds version 1 from now on, r2 still 0.
  while (fresh.Admitted(100).ok()) {
  }

  const std::vector<WaitEdge> edges = fresh.job().Explain(fresh.now);
  ASSERT_NE(From(edges, NodeKind::kCall, "Admit"), nullptr);
  EXPECT_EQ(From(edges, NodeKind::kCall, "Admit")->on.kind, NodeKind::kVersion);
  EXPECT_EQ(From(edges, NodeKind::kCall, "Admit")->on.daemon, "r2");
}

TEST_F(ExplainTest, ADiskWithoutRoomIsWhereTheChainsOfParkedAdmitsAndOfTheQueueEnd) {
  h.Send({}, DiskSpace{Space::kLow});
  EXPECT_FALSE(h.Admitted(4).ok());

  const std::vector<WaitEdge> edges = h.job().Explain(h.now);
  const WaitEdge* admit = From(edges, NodeKind::kCall, "Admit");
  ASSERT_NE(admit, nullptr);
  const WaitEdge* queue = From(edges, NodeKind::kDaemon, "queue");
  ASSERT_NE(queue, nullptr);
  for (const WaitEdge* edge : {admit, queue}) {
    EXPECT_THAT(edge->cause, HasSubstr("nearly full"));
    EXPECT_EQ(edge->on.kind, NodeKind::kStore);
    const WaitEdge* disk = From(edges, NodeKind::kStore, edge->on.id);
    ASSERT_NE(disk, nullptr);
    EXPECT_EQ(disk->on.id, disk->waiter.id) << "a fault: nothing else is to blame";
    EXPECT_THAT(disk->hint, HasSubstr("--data-dir"));
  }

  h.Send({}, DiskSpace{Space::kOk});
  EXPECT_EQ(From(h.job().Explain(h.now), NodeKind::kStore, "disk"), nullptr);
}

TEST_F(ExplainTest, EachParkedCallAndEachLeaseHasAnEdgeAtAnyMoment) {
  const auto check = [&] {
    const std::vector<WaitEdge> edges = h.job().Explain(h.now);
    size_t calls = 0, held = 0;
    for (const WaitEdge& edge : edges) {
      EXPECT_FALSE(edge.cause.empty());
      EXPECT_FALSE(edge.on.id.empty()) << edge.cause;
      calls += edge.waiter.kind == NodeKind::kCall;
      held += edge.on.kind == NodeKind::kDaemon &&
              (edge.on.id == "r1" || edge.on.id == "w1" || edge.on.id == "t1");
    }

    size_t waiting = 0, leases = 0;
    for (const auto& [call, count] : h.job().Stats().waiting) waiting += count;
    for (PeekWhat what : {PeekWhat::kTasks, PeekWhat::kBatches}) {
      for (const PeekRow& row : h.job().Peek(what, "leased", h.now)) leases += !row.worker.empty();
    }
    for (uint64_t g = 0; h.job().group(g) != nullptr; ++g) {
      for (const GroupMember& member : h.job().group(g)->members)
        leases += member.lease.has_value();
    }

    EXPECT_EQ(calls, waiting);
    EXPECT_EQ(held, leases);
  };

  check();
  h.Send(h.Trainer(), AcquireBatch{.k = 0});
  h.Send(h.Reward(), LeaseTasks{.request = h.Request(), .rooms = {{"cpu", 1}}});
  const auto admitted = h.Admitted(100);
  h.Send(h.Rollout(), Admit{.request = h.Request(), .room = 1});
  check();
  h.SampleAll(h.Rollout(), *admitted, {1, 0});  // The first task goes to the call that waits.
  check();
  h.ScoreAll();
  h.Advance(absl::Seconds(1));
  check();
}

}  // namespace
}  // namespace sluice::queue
