#include "services/queue/arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace sluice::queue {
namespace {

constexpr Arena::Options kSmall{.segment_bytes = 1 << 20, .ahead = false};

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

TEST(ArenaTest, MemoryNobodySharesIsUsedAgain) {
  Arena arena(kSmall);
  std::set<char*> places;
  for (int i = 0; i < 100; ++i) places.insert(arena.Allocate(1000).get());
  EXPECT_EQ(places.size(), 1u);
  EXPECT_EQ(arena.use().used_bytes, 0u);
}

TEST(ArenaTest, RandomAllocationsKeepTheirBytesAndNothingLeaks) {
  for (uint32_t seed = 0; seed < 5; ++seed) {
    std::mt19937 random(seed);
    Arena arena(kSmall);
    struct Held {
      std::shared_ptr<char> memory;
      size_t bytes;
      char fill;
    };
    std::vector<Held> held;

    for (int i = 0; i < 3000; ++i) {
      if (held.size() > 40 || (!held.empty() && random() % 3 == 0)) {
        const size_t at = random() % held.size();
        for (size_t b = 0; b < held[at].bytes; ++b)
          ASSERT_EQ(held[at].memory.get()[b], held[at].fill) << "seed " << seed;
        held.erase(held.begin() + static_cast<ptrdiff_t>(at));
        continue;
      }

      const size_t bytes = random() % 100 == 0 ? (3 << 20) : random() % 5000;
      held.push_back({arena.Allocate(bytes), bytes, static_cast<char>(random())});
      std::memset(held.back().memory.get(), held.back().fill, bytes);
    }

    held.clear();
    EXPECT_EQ(arena.use().allocations, 0u);
    EXPECT_EQ(arena.use().used_bytes, 0u);
  }
}

TEST(ArenaTest, WhatIsLargerThanASegmentHasOneOfItsOwn) {
  Arena arena(kSmall);
  const std::shared_ptr<char> large = arena.Allocate(5 << 20);
  std::memset(large.get(), 1, 5 << 20);
  EXPECT_EQ(arena.use().segments, 1u);
}

TEST(ArenaTest, SegmentsThatStayEmptyGoBackToTheSystem) {
  Arena arena(kSmall);
  std::vector<std::shared_ptr<char>> held;
  for (int i = 0; i < 8; ++i) held.push_back(arena.Allocate(1000 << 10));
  EXPECT_EQ(arena.use().segments, 8u);

  held.resize(1);
  arena.Trim();  // It keeps those that were in use until now.
  EXPECT_EQ(arena.use().segments, 8u);
  arena.Trim();
  EXPECT_EQ(arena.use().segments, 2u);  // One in use, one spare.

  held.clear();
  arena.Trim();
  arena.Trim();
  EXPECT_EQ(arena.use().segments, 0u);
}

TEST(ArenaTest, AReaderSeesTheBytesUntilTheyAreRecycledAndThenThatTheyWere) {
  Arena arena(kSmall);
  std::shared_ptr<char> memory = arena.Allocate(1000);
  std::memset(memory.get(), 'x', 1000);

  // A field of a record is a part of an allocation.
  const std::shared_ptr<const char> field(memory, memory.get() + 100);
  const std::optional<shm::Slice> slice = Arena::SliceOf(field, 200);
  ASSERT_TRUE(slice.has_value());

  auto shared = arena.ShareSegment(slice->segment);
  ASSERT_TRUE(shared.ok());

  const auto mapped = shm::Segment::Map(std::move(shared->fd), shared->bytes, /*writable=*/false);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  ASSERT_TRUE(shm::InBounds(*mapped, *slice));
  EXPECT_TRUE(shm::IsCurrent(*mapped, *slice));
  EXPECT_EQ(std::string(mapped->data() + slice->offset, 200), std::string(200, 'x'));

  memory.reset();
  EXPECT_TRUE(shm::IsCurrent(*mapped, *slice));  // The field still shares it.
  const_cast<std::shared_ptr<const char>&>(field).reset();
  EXPECT_FALSE(shm::IsCurrent(*mapped, *slice));

  const std::shared_ptr<char> next = arena.Allocate(1000);
  EXPECT_EQ(Arena::SliceOf(next, 1)->block, slice->block);
  EXPECT_FALSE(shm::IsCurrent(*mapped, *slice));
}

TEST(ArenaTest, NobodyWhoGetsASegmentCanWriteIt) {
  Arena arena(kSmall);
  const std::shared_ptr<char> memory = arena.Allocate(1000);
  auto shared = arena.ShareSegment(Arena::SliceOf(memory, 1)->segment);
  ASSERT_TRUE(shared.ok());
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, shared->fd.get(), 0),
            MAP_FAILED);

  void* const readable = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, shared->fd.get(), 0);
  ASSERT_NE(readable, MAP_FAILED);
  EXPECT_NE(mprotect(readable, 4096, PROT_READ | PROT_WRITE), 0);
  munmap(readable, 4096);
  EXPECT_FALSE(arena.ShareSegment(99).ok());
}

TEST(ArenaTest, BytesOfTheHeapLieInNoSegment) {
  EXPECT_FALSE(
      Arena::SliceOf(std::shared_ptr<const char>(new char[10], std::default_delete<char[]>()), 10)
          .has_value());
}

TEST(ArenaTest, ThreadsThatAllocateAndFreeTogetherLeaveNothing) {
  Arena arena({.segment_bytes = 1 << 20});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<std::shared_ptr<char>> held(20);
      for (int i = 0; i < 2000; ++i) {
        const size_t bytes = 1 + random() % 20000;
        auto& place = held[random() % held.size()];
        place = arena.Allocate(bytes);
        std::memset(place.get(), t, bytes);
        if (i % 500 == 0) arena.Trim();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(arena.use().allocations, 0u);
}

}  // namespace
}  // namespace sluice::queue
