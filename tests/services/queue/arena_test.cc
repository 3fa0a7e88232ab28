#include "services/queue/arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace sluice::queue {
namespace {

TEST(ArenaTest, AllocationsDoNotOverlapAndStayAsLongAsTheyAreShared) {
  std::vector<std::shared_ptr<char>> held;
  {
    Arena arena;
    for (int i = 0; i < 5000; ++i) {
      held.push_back(arena.Allocate(1000));
      std::memset(held.back().get(), i % 251, 1000);
    }
  }
  for (int i = 0; i < 5000; ++i) {
    for (int b : {0, 999}) ASSERT_EQ(static_cast<uint8_t>(held[i].get()[b]), i % 251);
  }
}

TEST(ArenaTest, AChunkNobodySharesIsUsedAgain) {
  Arena arena;
  std::set<char*> chunks;
  for (int i = 0; i < 100; ++i) chunks.insert(arena.Allocate(Arena::kChunkBytes / 2).get());  // Two fill a chunk.
  EXPECT_LE(chunks.size(), 4u);
}

TEST(ArenaTest, WhatIsLargerThanAChunkHasItsOwnMemory) {
  Arena arena;
  const std::shared_ptr<char> large = arena.Allocate(5 << 20);
  std::memset(large.get(), 1, 5 << 20);
}

}  // namespace
}  // namespace sluice::queue
