#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/testing/data.h"
#include "tests/fault/weights/fleet_sim.h"

// A few hundred seeds of what weight_faults runs by the ten thousand.
namespace sluice::fault {
namespace {

constexpr uint64_t kSeeds = 200;

TEST(WeightFaultsTest, W03W05W06W07W12FaultsAtAnyPointEndInTheLastVersionAndNeverInOthersBits) {
  Findings all;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed)
    all.Add(SimulateWeights(seed, testing_data::TempPath("weights")));
  EXPECT_THAT(all.wrong, testing::IsEmpty());
  EXPECT_EQ(all.counts["manual resets"], 0u);
  EXPECT_EQ(all.counts["runs"], kSeeds);
  EXPECT_GT(all.counts["activations"], kSeeds);
  EXPECT_GT(all.counts["tokens"], kSeeds);
  EXPECT_GT(all.faults_in_all(), 10 * kSeeds);
}

TEST(WeightFaultsTest, ARunDependsOnItsSeedAlone) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::string dir = testing_data::TempPath("weights");
    const Findings once = SimulateWeights(seed, dir), again = SimulateWeights(seed, dir);
    EXPECT_EQ(once.counts, again.counts) << seed;
    EXPECT_EQ(once.faults, again.faults) << seed;
  }
}

}  // namespace
}  // namespace sluice::fault
