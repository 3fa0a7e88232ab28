#include "services/queue/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace sluice::queue {
namespace {

using testing::ElementsAre;

// A claim is what a job needs at least, its quota, and what it has reserved.
TEST(MemoryTest, JobsThatFitHaveTheirQuota) {
  EXPECT_THAT(FairShares(100, {{{10, 40, 0}, {10, 60, 0}}}), ElementsAre(40, 60));
}

TEST(MemoryTest, WhatIsShortIsSharedEvenly) {
  EXPECT_THAT(FairShares(100, {{{10, 80, 0}, {10, 80, 0}}}), ElementsAre(50, 50));
}

TEST(MemoryTest, AJobThatWantsLittleLeavesTheRestToTheOthers) {
  EXPECT_THAT(FairShares(100, {{{5, 10, 0}, {10, 80, 0}, {10, 80, 0}}}), ElementsAre(10, 45, 45));
}

TEST(MemoryTest, NobodyFallsBelowWhatItNeeds) {
  EXPECT_THAT(FairShares(100, {{{70, 90, 0}, {10, 90, 0}}}), ElementsAre(70, 30));
}

TEST(MemoryTest, ANewJobRisesToItsShareAsTheOldOneGivesBack) {
  EXPECT_THAT(FairShares(100, {{{10, 100, 100}, {10, 100, 0}}}), ElementsAre(50, 0));

  // The first job holds 20 above its share, which the second one's lacks; rounding takes a byte.
  const auto later = FairShares(100, {{{10, 100, 70}, {10, 100, 10}}});
  EXPECT_EQ(later[0], 50u);
  EXPECT_THAT(later[1], testing::AllOf(testing::Ge(28u), testing::Le(30u)));
  EXPECT_THAT(FairShares(100, {{{10, 100, 50}, {10, 100, 30}}}), ElementsAre(50, 50));
}

TEST(MemoryTest, OverRandomJobsTheLimitHoldsAndSharesAreFair) {
  for (uint32_t seed = 0; seed < 5000; ++seed) {
    std::mt19937 random(seed);
    const uint64_t limit = 1000 + random() % 100000;
    std::vector<MemoryClaim> claims(1 + random() % 6);
    uint64_t need_left = limit, hold_left = limit;
    for (MemoryClaim& claim : claims) {
      claim.needed = random() % (need_left / claims.size() + 1);
      need_left -= claim.needed;
      claim.quota = claim.needed + random() % limit;
      claim.reserved = random() % (std::min(hold_left, claim.quota) + 1);
      hold_left -= claim.reserved;
    }

    const auto shares = FairShares(limit, claims);
    uint64_t most = 0;
    for (size_t i = 0; i < claims.size(); ++i) {
      most += std::max(shares[i], claims[i].reserved);
      EXPECT_LE(shares[i], claims[i].quota) << "seed " << seed;
    }

    EXPECT_LE(most, limit) << "seed " << seed;

    // Once nothing is held above a share, two jobs that both want more have the same.
    for (MemoryClaim& claim : claims) claim.reserved = 0;
    const auto rest = FairShares(limit, claims);
    for (size_t i = 0; i < claims.size(); ++i) {
      EXPECT_GE(rest[i], claims[i].needed);
      for (size_t j = 0; j < claims.size(); ++j) {
        if (rest[i] < claims[i].quota && rest[j] > claims[j].needed) {
          EXPECT_GE(rest[i], rest[j]) << "seed " << seed;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::queue
