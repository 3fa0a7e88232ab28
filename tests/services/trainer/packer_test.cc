#include "services/trainer/core/packer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "common/base/splitmix.h"

namespace sluice::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Sequences that share nothing.
std::vector<PackItem> Alone(const std::vector<uint32_t>& lengths) {
  std::vector<PackItem> items;
  for (uint32_t i = 0; i < lengths.size(); ++i) items.push_back({.group = i, .length = lengths[i]});
  return items;
}

TEST(PackTest, LongestGoFirstIntoTheFirstMicroBatchWithRoom) {
  EXPECT_THAT(Pack(Alone({3, 5, 4, 1}), 8), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
}

TEST(PackTest, ASequenceAboveTheLimitStandsAlone) {
  EXPECT_THAT(Pack(Alone({2, 20, 2}), 8), ElementsAre(ElementsAre(1), ElementsAre(0, 2)));
}

TEST(PackTest, EmptySequencesAreLeftOut) {
  EXPECT_THAT(Pack(Alone({0, 3, 0}), 8), ElementsAre(ElementsAre(1)));
  EXPECT_THAT(Pack({}, 8), IsEmpty());
}

TEST(PackTest, AGroupStaysTogetherAndItsPrefixCountsOnce) {
  // 6 + 1 + 2 tokens, then 6 + 3 + 1. If the prefix counted for every sequence, they would need
  // four micro-batches.
  EXPECT_THAT(Pack({{0, 7, 6}, {0, 8, 6}, {1, 9, 6}, {1, 7, 6}}, 10),
              ElementsAre(ElementsAre(2, 3), ElementsAre(0, 1)));
}

TEST(PackTest, AGroupThatDoesNotFitIsCut) {
  EXPECT_THAT(Pack({{0, 7, 4}, {0, 7, 4}, {0, 7, 4}}, 10),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
}

TEST(PackTest, EverySequenceIsThereOnceAndNoMicroBatchIsOver) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SplitMix64 random(seed);
    std::vector<PackItem> items;
    for (uint32_t group = 0; group < 30; ++group) {
      const uint32_t shared = static_cast<uint32_t>(random.Below(30));
      for (uint64_t members = random.Below(8); members > 0; --members) {
        items.push_back({group, shared + 1 + static_cast<uint32_t>(random.Below(30)), shared});
      }
    }

    std::vector<int> times(items.size(), 0);
    for (const std::vector<uint32_t>& bin : Pack(items, 64)) {
      uint32_t tokens = 0;
      std::map<uint32_t, uint32_t> prefixes;
      for (uint32_t index : bin) {
        ++times[index];
        tokens += items[index].length - items[index].shared;
        prefixes[items[index].group] = items[index].shared;
      }
      for (const auto& [group, shared] : prefixes) tokens += shared;

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
