#include "common/weights/relay_chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"

namespace sluice {
namespace {

using testing::ElementsAre;

constexpr uint64_t kPiece = 256 << 10;

std::vector<RelayMember> Members(int count) {
  std::vector<RelayMember> members;
  for (int i = 0; i < count; ++i)
    members.push_back({absl::StrCat("rollout-", i), absl::StrCat("host-", i, ":1")});
  return members;
}

std::vector<std::string> IdsOf(const std::vector<RelayMember>& members) {
  std::vector<std::string> ids;
  for (const RelayMember& member : members) ids.push_back(member.id);
  return ids;
}

bool Nobody(const std::string&) { return false; }

TEST(RelayChainTest, AutoIsAStarForFewRolloutsOrASmallModelElseAChain) {
  EXPECT_FALSE(UsesChain(FanOut::kAuto, 2, 100 << 20));
  EXPECT_TRUE(UsesChain(FanOut::kAuto, 3, 1 << 20));
  EXPECT_FALSE(UsesChain(FanOut::kAuto, 3, (1 << 20) - 1));
  EXPECT_FALSE(UsesChain(FanOut::kStar, 100, 100 << 20));
  EXPECT_TRUE(UsesChain(FanOut::kChain, 1, 1));
}

TEST(RelayChainTest, AMemberThatLeavesChangesTheOrderOfNoOther) {
  SplitMix64 random(3);
  for (int round = 0; round < 100; ++round) {
    const std::string key = absl::StrCat("job ", random.Next());
    std::vector<RelayMember> members = Members(2 + static_cast<int>(random.Below(20)));
    std::vector<std::string> before = IdsOf(SortIntoChain(members, key));
    const size_t leaver = random.Below(members.size());
    std::erase(before, members[leaver].id);
    members.erase(members.begin() + static_cast<std::ptrdiff_t>(leaver));
    // Each daemon gets the list in an order of its own.
    std::reverse(members.begin(), members.end());
    EXPECT_EQ(IdsOf(SortIntoChain(members, key)), before) << key;
  }
}

TEST(RelayChainTest, EachMemberIsFirstForAboutAsManyJobs) {
  std::map<std::string, int> first;
  for (int job = 0; job < 4000; ++job)
    ++first[SortIntoChain(Members(4), absl::StrCat("job ", job)).front().id];
  for (const auto& [id, jobs] : first) EXPECT_NEAR(jobs, 1000, 150) << id;
}

TEST(RelayChainTest, ParentGrandparentAndTrainerComeBeforeAllOthers) {
  const std::vector<RelayMember> chain = Members(6);
  EXPECT_THAT(ListHolders(chain, "rollout-0", Nobody),
              ElementsAre("", "rollout-1", "rollout-2", "rollout-3", "rollout-4", "rollout-5"));
  EXPECT_THAT(ListHolders(chain, "rollout-1", Nobody),
              ElementsAre("rollout-0", "", "rollout-2", "rollout-3", "rollout-4", "rollout-5"));
  EXPECT_THAT(ListHolders(chain, "rollout-4", Nobody),
              ElementsAre("rollout-3", "rollout-2", "", "rollout-1", "rollout-0", "rollout-5"));
}

TEST(RelayChainTest, OneThatIsAvoidedIsNobodysParentAndIsAskedLast) {
  const auto is_avoided = [](const std::string& id) { return id == "rollout-3"; };
  EXPECT_THAT(ListHolders(Members(6), "rollout-4", is_avoided),
              ElementsAre("rollout-2", "rollout-1", "", "rollout-0", "rollout-5", "rollout-3"));
}

TEST(RelayChainTest, OneThatIsNotListedYetStandsAtTheEnd) {
  EXPECT_THAT(ListHolders(Members(3), "rollout-9", Nobody),
              ElementsAre("rollout-2", "rollout-1", "", "rollout-0"));
}

TEST(RelayChainTest, FollowingParentsLeadsToTheTrainerFromEveryMember) {
  SplitMix64 random(5);
  for (int round = 0; round < 200; ++round) {
    const auto chain = SortIntoChain(Members(1 + static_cast<int>(random.Below(30))), "job");
    std::set<std::string> avoided;
    for (const RelayMember& member : chain) {
      if (random.Below(3) == 0) avoided.insert(member.id);
    }
    for (const RelayMember& member : chain) {
      std::string at = member.id;
      size_t hops = 0;
      while (at != kOriginId && hops++ <= chain.size()) {
        at = ListHolders(chain, at, [&](const std::string& id) {
               return avoided.contains(id);
             }).front();
      }
      EXPECT_EQ(at, kOriginId) << member.id;
    }
  }
}

TEST(HolderHistoryTest, SilenceIsJudgedByFourTimesTheUsualTimeButAtLeastOneSecond) {
  HolderHistory history;
  EXPECT_EQ(history.SilenceLimit(kPiece), absl::Seconds(1));
  for (int i = 0; i < 20; ++i) history.AddPiece("a", kPiece, absl::Milliseconds(20));
  EXPECT_EQ(history.SilenceLimit(kPiece), absl::Seconds(1));
  for (int i = 0; i < 100; ++i) history.AddPiece("a", kPiece, absl::Milliseconds(500));
  EXPECT_NEAR(absl::ToDoubleSeconds(history.SilenceLimit(kPiece)), 2, 1e-6);
}

TEST(HolderHistoryTest, OneBelowHalfOfTheMedianRateIsSlowOnceItHasHadASecond) {
  HolderHistory history;
  for (int i = 0; i < 40; ++i) history.AddPiece("fast", kPiece, absl::Milliseconds(100));
  for (int i = 0; i < 4; ++i) {
    history.AddPiece("slow", kPiece, absl::Milliseconds(240));
    EXPECT_FALSE(history.IsSlow("slow")) << "0.96 s";
  }
  history.AddPiece("slow", kPiece, absl::Milliseconds(240));
  EXPECT_TRUE(history.IsSlow("slow"));
  EXPECT_FALSE(history.IsSlow("fast"));
}

TEST(HolderHistoryTest, OneThatIsALittleSlowerThanTheMedianIsNotSlow) {
  HolderHistory history;
  for (int i = 0; i < 40; ++i) history.AddPiece("fast", kPiece, absl::Milliseconds(100));
  for (int i = 0; i < 20; ++i) history.AddPiece("other", kPiece, absl::Milliseconds(190));
  EXPECT_FALSE(history.IsSlow("other"));
}

TEST(HolderHistoryTest, AFaultIsRememberedForAWhileButNotThatSomebodyStarved) {
  HolderHistory history;
  const absl::Duration now = absl::Hours(1);
  history.AddFault("silent", HolderFault::kSilent, now);
  history.AddFault("liar", HolderFault::kLied, now);
  history.AddFault("starved", HolderFault::kStarved, now);
  history.AddFault("", HolderFault::kGone, now);
  EXPECT_TRUE(history.IsAvoided("silent", now + absl::Seconds(29)));
  EXPECT_FALSE(history.IsAvoided("silent", now + absl::Seconds(30)));
  EXPECT_TRUE(history.IsAvoided("liar", now + absl::Seconds(599)));
  EXPECT_FALSE(history.IsAvoided("starved", now));
  EXPECT_FALSE(history.IsAvoided("", now)) << "nobody can do without the trainer for ever";
}

}  // namespace
}  // namespace sluice
