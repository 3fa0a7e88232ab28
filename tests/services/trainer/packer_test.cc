#include "services/trainer/core/packer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "common/base/splitmix.h"

namespace sluice::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PackTest, LongestGoFirstIntoTheFirstMicroBatchWithRoom) {
  EXPECT_THAT(Pack({3, 5, 4, 1}, 8), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
}

TEST(PackTest, ASequenceAboveTheLimitStandsAlone) {
  EXPECT_THAT(Pack({2, 20, 2}, 8), ElementsAre(ElementsAre(1), ElementsAre(0, 2)));
}

TEST(PackTest, EmptySequencesAreLeftOut) {
  EXPECT_THAT(Pack({0, 3, 0}, 8), ElementsAre(ElementsAre(1)));
  EXPECT_THAT(Pack({}, 8), IsEmpty());
}

TEST(PackTest, EverySequenceIsThereOnceAndNoMicroBatchIsOver) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SplitMix64 random(seed);
    std::vector<uint32_t> lengths(random.Below(200));
    for (uint32_t& length : lengths) length = 1 + static_cast<uint32_t>(random.Below(60));
    std::vector<int> times(lengths.size(), 0);
    for (const std::vector<uint32_t>& bin : Pack(lengths, 64)) {
      uint32_t tokens = 0;
      for (uint32_t index : bin) {
        ++times[index];
        tokens += lengths[index];
      }
      EXPECT_LE(tokens, 64u) << "seed " << seed;
    }
    for (int t : times) EXPECT_EQ(t, 1) << "seed " << seed;
  }
}

TEST(CutEvenlyTest, PartsDifferByAtMostOne) {
  EXPECT_THAT(CutEvenly(10, 4), ElementsAre(0, 2, 5, 7, 10));
  EXPECT_THAT(CutEvenly(1, 2), ElementsAre(0, 0, 1));
}

}  // namespace
}  // namespace sluice::trainer
