#include "common/shm/allocator.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace sluice::shm {
namespace {

TEST(OffsetAllocatorTest, GivesAlignedRangesUntilItIsFull) {
  OffsetAllocator holes(1024);
  EXPECT_EQ(holes.Allocate(1), 0u);
  EXPECT_EQ(holes.Allocate(64), 64u);
  EXPECT_EQ(holes.Allocate(65), 128u);
  EXPECT_EQ(holes.Allocate(769), std::nullopt);
  EXPECT_EQ(holes.Allocate(768), 256u);
  EXPECT_EQ(holes.Allocate(0), std::nullopt);
  EXPECT_EQ(holes.Allocate(~uint64_t{0}), std::nullopt);
}

TEST(OffsetAllocatorTest, TakesTheSmallestHoleThatFitsAndTheLowestOfThose) {
  OffsetAllocator holes(1 << 20);
  std::vector<uint64_t> at;
  for (int i = 0; i < 8; ++i) at.push_back(*holes.Allocate(i % 2 == 0 ? 128 : 64));
  holes.Free(at[1], 64);
  holes.Free(at[2], 128);  // Joins the hole before it: 192 bytes.
  holes.Free(at[5], 64);
  holes.Free(at[7], 64);  // Joins the free rest behind it.

  EXPECT_EQ(holes.Allocate(64), at[5]);
  EXPECT_EQ(holes.Allocate(64), at[1]);
  EXPECT_EQ(holes.Allocate(128), at[2]);
}

TEST(OffsetAllocatorTest, RangesNeverOverlapAndAllComesBack) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    OffsetAllocator holes(64 << 10);
    std::vector<std::pair<uint64_t, uint64_t>> held;
    std::vector<bool> taken(1 << 10);

    for (int i = 0; i < 5000; ++i) {
      if (!held.empty() && random() % 2 == 0) {
        const size_t at = random() % held.size();
        const auto [offset, bytes] = held[at];
        for (uint64_t line = offset / 64; line < (offset + bytes + 63) / 64; ++line)
          taken[line] = false;
        holes.Free(offset, bytes);
        held.erase(held.begin() + static_cast<ptrdiff_t>(at));
        continue;
      }

      const uint64_t bytes = 1 + random() % 4000;
      const auto offset = holes.Allocate(bytes);
      if (!offset) continue;
      for (uint64_t line = *offset / 64; line < (*offset + bytes + 63) / 64; ++line) {
        ASSERT_FALSE(taken[line]) << "seed " << seed;
        taken[line] = true;
      }
      held.emplace_back(*offset, bytes);
    }

    for (const auto& [offset, bytes] : held) holes.Free(offset, bytes);
    EXPECT_TRUE(holes.idle());
    EXPECT_EQ(holes.largest_hole(), 64u << 10);
  }
}

}  // namespace
}  // namespace sluice::shm
