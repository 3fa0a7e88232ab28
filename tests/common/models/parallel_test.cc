#include "common/models/parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "common/models/team.h"

namespace sluice {
namespace {

using ::testing::Each;
using ::testing::UnorderedElementsAre;

class ParallelTest : public ::testing::Test {
 protected:
  ~ParallelTest() override {
    SetParallelThreads([] { return 1; });
  }
};

TEST_F(ParallelTest, ALoopRunsOnAsManyThreadsAsItMay) {
  for (const int threads : {3, 1, 2}) {
    SetParallelThreads([threads] { return threads; });
    std::barrier all(threads);  // Nobody continues before all threads are here.
    ParallelFor(threads, 1, [&](int64_t, int64_t) { all.arrive_and_wait(); });
    ParallelEach(threads, [&](int64_t) { all.arrive_and_wait(); });
  }
}

TEST_F(ParallelTest, ItsRangesCoverAllOnceAndAreNoSmallerThanTheGrain) {
  SetParallelThreads([] { return 4; });
  std::mutex mu;
  const auto ranges = [&](int64_t n, int64_t grain) {
    std::vector<std::pair<int64_t, int64_t>> out;
    ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
      const std::lock_guard<std::mutex> lock(mu);
      out.emplace_back(begin, end);
    });
    return out;
  };

  EXPECT_THAT(ranges(10, 1), UnorderedElementsAre(std::pair(0, 3), std::pair(3, 6), std::pair(6, 9),
                                                  std::pair(9, 10)));
  EXPECT_THAT(ranges(10, 5), UnorderedElementsAre(std::pair(0, 5), std::pair(5, 10)));
  EXPECT_THAT(ranges(10, 100), UnorderedElementsAre(std::pair(0, 10)));
  EXPECT_TRUE(ranges(0, 1).empty());

  std::vector<int> counts(1000);
  ParallelEach(1000, [&](int64_t i) { ++counts[i]; });
  EXPECT_THAT(counts, Each(1));
}

TEST_F(ParallelTest, ALoopWithinALoopRunsOnItsCaller) {
  SetParallelThreads([] { return 2; });
  ParallelFor(2, 1, [&](int64_t, int64_t) {
    const std::thread::id caller = std::this_thread::get_id();
    ParallelFor(8, 1, [&](int64_t, int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
  });
}

TEST_F(ParallelTest, AnExceptionOfAnyThreadLeavesTheLoopOnceAllItsThreadsAreDone) {
  SetParallelThreads([] { return 2; });
  const std::thread::id caller = std::this_thread::get_id();
  for (int round = 0; round < 200; ++round) {
    const bool caller_throws = round % 2 == 0;
    std::barrier both(2);  // Both threads have a part, and the other part ends after the exception.
    std::atomic<bool> other_is_done{false};
    const auto work = [&](int64_t, int64_t) {
      both.arrive_and_wait();
      if ((std::this_thread::get_id() == caller) == caller_throws) {
        struct Unwound {
          std::barrier<>* both;
          ~Unwound() { (void)both->arrive(); }
        } unwound{&both};
        throw std::runtime_error("no memory");
      }
      both.arrive_and_wait();
      other_is_done = true;
    };

    EXPECT_THROW(ParallelFor(2, 1, work), std::runtime_error);
    ASSERT_TRUE(other_is_done);
  }

  std::atomic<int> calls{0};
  ParallelEach(100, [&](int64_t) { ++calls; });
  EXPECT_EQ(calls, 100);
}

TEST(TeamTest, AnOfferIsDoneByWhoeverComesAndWaitsForNobodyElse) {
  Team team(3, "sluice-test");
  for (int round = 0; round < 2000; ++round) {
    std::atomic<int> next{0};
    std::atomic<int> done{0};
    const auto work = [&](int) {
      while (next.fetch_add(1) < 8) ++done;
    };

    if (round % 3 == 2) team.Run(work);
    else team.Offer(work);

    ASSERT_EQ(done, 8);
  }
}

TEST(TeamTest, GrowsAndShrinksBetweenRuns) {
  Team team(1, "sluice-test");
  for (const int size : {4, 2, 3, 1, 5, 5}) {
    team.Resize(size);

    std::mutex mu;
    std::set<int> indices;
    for (int round = 0; round < 3; ++round) {
      team.Run([&](int index) {
        const std::lock_guard<std::mutex> lock(mu);
        indices.insert(index);
      });
    }

    EXPECT_EQ(indices.size(), static_cast<size_t>(size));
    EXPECT_EQ(*indices.rbegin(), size - 1);
  }
}

}  // namespace
}  // namespace sluice
