// Broadcasts of whole versions to fleets, with faults: real servers, subscribers and Gloo groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/collective/c10d_collective.h"
#include "common/collective/remote_rendezvous.h"
#include "common/rpc/cancel.h"
#include "common/rpc/client.h"
#include "sluice/weights/v1/weights.pb.h"
#include "tests/common/weights/fleet.h"

namespace sluice {
namespace {

using Seat = absl::StatusOr<weights::v1::JoinBroadcastResponse>;

// As long as others are expected, the first one waits for them.
constexpr absl::Duration kForOthers = absl::Hours(1);

class BroadcastTest : public FleetTest {
 protected:
  static Ways Broadcasts(FanOut fan_out = FanOut::kStar) {
    return {
        .fan_out = fan_out,
        .broadcast = BroadcastOptions{.join = JoinC10d, .host = "127.0.0.1", .wait = kForOthers}};
  }

  // Joins the broadcast of the version that is staged, before any rollout has heard of it.
  std::future<Seat> Enter(const PublishedVersion& staged, const std::string& worker) {
    const auto answer = std::make_shared<std::promise<Seat>>();
    broadcasts_->Join({.job = kFleetJob,
                       .worker = worker,
                       .manifest = staged.manifest,
                       .wait = kForOthers,
                       .source = publisher_,
                       .expected = publisher_->listeners(),
                       .has_left = [] { return false; },
                       .answer = [answer](Seat seat) { answer->set_value(std::move(seat)); }});
    return answer->get_future();
  }
  // Meets the others of the group.
  std::unique_ptr<Collective> Meet(const weights::v1::JoinBroadcastResponse& seat,
                                   const std::string& worker) {
    rpc::Cancel never;
    RemoteRendezvous rendezvous(*rpc::Connect(server_->address(), {rpc::Role::kTrainer}),
                                {.job = kFleetJob,
                                 .worker = worker,
                                 .incarnation = 1,
                                 .group = seat.group(),
                                 .cancel = &never});
    auto group = JoinC10d({.rank = static_cast<int>(seat.rank()),
                           .world = static_cast<int>(seat.world()),
                           .meet = absl::Seconds(60)},
                          &rendezvous);
    return group.ok() ? *std::move(group) : nullptr;
  }
};

class BroadcastFanOutTest : public BroadcastTest, public testing::WithParamInterface<FanOut> {};

TEST_P(BroadcastFanOutTest, WholeVersionsReachAllRolloutsByBroadcastsAndTheDeltasByCalls) {
  for (size_t i = 0; i < 3; ++i) Join(i, Broadcasts(GetParam()));
  ASSERT_NO_FATAL_FAILURE(AwaitListeners(3));
  const PublishedVersion last = PublishSome({0, 1, 2});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(rollout(i).state(), last.state) << i;
    EXPECT_EQ(rollout(i).counts().last_fault, "") << i;
    // The first version and the third are whole.
    EXPECT_GT(rollout(i).counts().bytes["c10d"], 320'000u) << i;
    EXPECT_LT(rollout(i).counts().bytes["c10d"], 330'000u) << i;
    EXPECT_GT(rollout(i).counts().bytes["grpc"], 0u) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Each, BroadcastFanOutTest, testing::Values(FanOut::kStar, FanOut::kChain),
                         [](const auto& info) {
                           return info.param == FanOut::kStar ? "Star" : "Chain";
                         });

// Nobody else comes: it does not wait an hour to find that out.
TEST_F(BroadcastTest, ARolloutAloneAndOneThatJoinsLateCallAtOnce) {
  Join(0, Broadcasts());
  ASSERT_NO_FATAL_FAILURE(AwaitListeners(1));
  const PublishedVersion last = PublishSome({0});
  ASSERT_NO_FATAL_FAILURE(AwaitReport(rollout(0).id(), last.version));
  Join(1, Broadcasts());
  ASSERT_TRUE(rollout(1).Await(last.version));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(rollout(i).state(), last.state) << i;
    EXPECT_EQ(rollout(i).counts().last_fault, "") << i;
    EXPECT_EQ(rollout(i).counts().bytes.count("c10d"), 0u) << i;
  }
}

TEST_F(BroadcastTest, ARolloutThatSharesTheTrainersMemoryKeepsNobodyWaiting) {
  ShareTrainersMemory();
  Join(0, {.shared_memory = true});
  for (size_t i = 1; i < 3; ++i) Join(i, Broadcasts());
  ASSERT_NO_FATAL_FAILURE(AwaitListeners(3));
  // A report says by which transport it fetches; no other version is wanted before.
  publisher_->Report({.worker = rollout(0).id(), .phase = "ACTIVE", .transport = "shm"});
  const PublishedVersion last = *publisher_->Publish(RandomWeights(5), {1, 1}, "");
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(rollout(i).Await(last.version)) << i;
    EXPECT_EQ(rollout(i).state(), last.state) << i;
    EXPECT_GT(rollout(i).counts().bytes[i == 0 ? "shm" : "c10d"], 160'000u) << i;
  }
}

// What a member of the group does that is the first in it, so that all others are behind it.
enum class Deed { kNeverMeets, kLeavesInTheMiddle, kHangs };

class BroadcastFaultTest : public BroadcastTest, public testing::WithParamInterface<Deed> {};

TEST_P(BroadcastFaultTest, AFaultyMemberHurtsNobodyForLongAndOnlyWhatIsMissingComesByCalls) {
  Ways ways = Broadcasts();
  if (GetParam() != Deed::kLeavesInTheMiddle) ways.limits.silent = absl::Milliseconds(400);
  for (size_t i = 0; i < 2; ++i) Join(i, ways);
  ASSERT_NO_FATAL_FAILURE(AwaitListeners(2));
  const PublishedVersion version = *publisher_->Stage(RandomWeights(5), {1, 1});
  const std::string faulty = rollout(2).id();
  std::future<Seat> seat = Enter(version, faulty);
  publisher_->Promote(version);

  std::promise<void> ended;
  std::thread member([&, end = ended.get_future()] {
    const Seat mine = seat.get();
    ASSERT_EQ(mine.status(), absl::OkStatus());
    EXPECT_EQ(mine->rank(), 1u);
    EXPECT_EQ(mine->world(), 4u);
    if (GetParam() == Deed::kNeverMeets) return;
    const std::unique_ptr<Collective> group = Meet(*mine, faulty);
    if (GetParam() == Deed::kHangs) return end.wait();
    ASSERT_NE(group, nullptr);
    EXPECT_EQ(group->StartStream(160'052, mine->bucket_bytes()), absl::OkStatus());
    for (int i = 0; i < 5; ++i) EXPECT_EQ(group->NextBucket().status(), absl::OkStatus());
  });
  uint64_t whole = 0;
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(rollout(i).Await(version.version)) << i;
    EXPECT_EQ(rollout(i).state(), version.state) << i;
    EXPECT_THAT(rollout(i).counts().last_fault, testing::HasSubstr("the trainer by c10d gone"))
        << i;
    auto bytes = rollout(i).counts().bytes;
    EXPECT_EQ(bytes["c10d"] > 0, GetParam() == Deed::kLeavesInTheMiddle) << i;
    EXPECT_GT(bytes["grpc"], 0u) << i;
    // Nothing came twice.
    if (i == 0) whole = bytes["c10d"] + bytes["grpc"];
    EXPECT_EQ(bytes["c10d"] + bytes["grpc"], whole) << i;
    EXPECT_GT(whole, 160'000u);
    EXPECT_LT(whole, 180'000u);
  }
  ended.set_value();
  member.join();
}

std::string DeedName(const testing::TestParamInfo<Deed>& info) {
  switch (info.param) {
    case Deed::kNeverMeets: return "NeverMeets";
    case Deed::kLeavesInTheMiddle: return "LeavesInTheMiddle";
    case Deed::kHangs: return "Hangs";
  }
  return "";
}
INSTANTIATE_TEST_SUITE_P(Each, BroadcastFaultTest,
                         testing::Values(Deed::kNeverMeets, Deed::kLeavesInTheMiddle, Deed::kHangs),
                         DeedName);

TEST_F(BroadcastTest, OnesWhoHaveGivenUpOrCalledAgainAreNotInTheGroup) {
  const PublishedVersion version = *publisher_->Stage(RandomWeights(5), {1, 1});
  std::vector<std::future<Seat>> answers;
  const auto enter = [&](const std::string& worker, bool has_left, std::set<std::string> expected) {
    const auto answer = std::make_shared<std::promise<Seat>>();
    answers.push_back(answer->get_future());
    broadcasts_->Join({.job = kFleetJob,
                       .worker = worker,
                       .manifest = version.manifest,
                       .wait = kForOthers,
                       .source = publisher_,
                       .expected = std::move(expected),
                       .has_left = [has_left] { return has_left; },
                       .answer = [answer](Seat seat) { answer->set_value(std::move(seat)); }});
  };
  enter("a", false, {"a", "b", "c"});
  enter("a", false, {});
  enter("b", true, {});
  enter("c", false, {});

  EXPECT_TRUE(absl::IsUnavailable(answers[0].get().status())) << "the former call";
  EXPECT_TRUE(absl::IsCancelled(answers[2].get().status())) << "it has given up";
  for (const size_t i : {size_t{1}, size_t{3}}) {
    const Seat seat = answers[i].get();
    ASSERT_EQ(seat.status(), absl::OkStatus());
    EXPECT_EQ(seat->world(), 3u);
    EXPECT_EQ(seat->rank(), i == 1 ? 1u : 2u);
  }

  enter("a", false, {});
  const Seat alone = answers.back().get();
  ASSERT_EQ(alone.status(), absl::OkStatus());
  EXPECT_EQ(alone->group(), "");
  EXPECT_THAT(alone->edge().cause(), testing::HasSubstr("too few rollouts"));

  // Those who wait for others are answered, and rank 0 waits for nobody, when the trainer ends.
  enter("a", false, {"a", "b"});
  broadcasts_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(answers.back().get().status()));
  enter("a", false, {});
  EXPECT_TRUE(absl::IsUnavailable(answers.back().get().status()));
}

TEST_F(BroadcastTest, OnlyMembersOfAGroupUseItsRendezvous) {
  rendezvous_.AddGroup(kFleetJob, "group", {"rollout-0"});
  rpc::Cancel never;
  const auto set = [&](const std::string& worker, const std::string& group) {
    return RemoteRendezvous(*rpc::Connect(server_->address(), {rpc::Role::kTrainer}),
                            {.job = kFleetJob,
                             .worker = worker,
                             .incarnation = 1,
                             .group = group,
                             .cancel = &never})
        .Set("key", "value");
  };
  EXPECT_EQ(set("rollout-0", "group"), absl::OkStatus());
  EXPECT_EQ(ReasonOf(set("rollout-1", "group")), "GONE");
  EXPECT_EQ(ReasonOf(set("rollout-0", "other")), "GONE");
  EXPECT_EQ(ReasonOf(set("rollout-0", "")), "WRONG_ROLE");
  rendezvous_.RemoveGroup("group");
  EXPECT_EQ(ReasonOf(set("rollout-0", "group")), "GONE");
}

}  // namespace
}  // namespace sluice
