#include "common/rpc/leader_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"

namespace sluice::rpc {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const absl::Status kGone = absl::UnavailableError("gone");

absl::Status StandbyError(const std::string& leader) {
  return ErrorWith(absl::StatusCode::kUnavailable, {.reason = kStandby, .current = leader},
                   "a standby");
}

TEST(LeaderSearchTest, GoesThroughTheListInTurn) {
  LeaderSearch search({"a:1", "b:1", "c:1"});
  EXPECT_EQ(search.current(), "a:1");
  for (const char* next : {"b:1", "c:1", "a:1"}) {
    EXPECT_TRUE(search.OnFailed(search.current(), kGone));
    EXPECT_EQ(search.current(), next);
  }
}

TEST(LeaderSearchTest, FollowsAStandbyToTheLeaderThatIsInTheList) {
  LeaderSearch search({"a:1", "b:1", "c:1"});
  EXPECT_TRUE(search.OnFailed("a:1", StandbyError("c:1")));
  EXPECT_EQ(search.current(), "c:1");
  EXPECT_EQ(search.named_by(), "");
}

TEST(LeaderSearchTest, AsksALeaderThatIsNotInTheListOnceAllOfTheListHaveFailed) {
  LeaderSearch search({"a:1", "b:1"});
  search.OnFailed("a:1", StandbyError("other:1"));
  EXPECT_EQ(search.current(), "b:1") << "b may be that leader under another address";
  search.OnFailed("b:1", StandbyError("other:1"));
  EXPECT_EQ(search.current(), "other:1");
  EXPECT_EQ(search.named_by(), "b:1");

  search.OnFailed("other:1", kGone);
  EXPECT_EQ(search.current(), "a:1");
  EXPECT_EQ(search.named_by(), "");
}

TEST(LeaderSearchTest, WithOneAddressAlternatesBetweenItAndTheLeaderThatItNames) {
  LeaderSearch search({"service:1"});
  EXPECT_FALSE(search.OnFailed("service:1", kGone)) << "there is nobody else";
  EXPECT_TRUE(search.OnFailed("service:1", StandbyError("old:1")));
  EXPECT_TRUE(search.OnFailed("old:1", kGone));
  EXPECT_EQ(search.current(), "service:1");
  EXPECT_TRUE(search.OnFailed("service:1", StandbyError("new:1")));
  EXPECT_EQ(search.current(), "new:1");
}

// The lease that it had before it was started again has not ended yet.
TEST(LeaderSearchTest, AStandbyThatNamesItselfIsNoLeader) {
  LeaderSearch search({"a:1", "b:1"});
  EXPECT_TRUE(search.OnFailed("a:1", StandbyError("a:1")));
  EXPECT_EQ(search.current(), "b:1");
}

TEST(LeaderSearchTest, AFailureOfOneThatWasLeftAlreadyChangesNothing) {
  LeaderSearch search({"a:1", "b:1"});
  search.OnFailed("a:1", kGone);
  EXPECT_TRUE(search.OnFailed("a:1", kGone)) << "the next call goes to another one";
  EXPECT_EQ(search.current(), "b:1");
}

TEST(LeaderSearchTest, AddressesAreSeparatedByCommas) {
  EXPECT_THAT(SplitAddresses("a:1,b:2"), ElementsAre("a:1", "b:2"));
  EXPECT_THAT(SplitAddresses(" "), IsEmpty());
}

}  // namespace
}  // namespace sluice::rpc
