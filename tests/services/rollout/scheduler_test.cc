#include "services/rollout/core/scheduler/scheduler.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "common/base/splitmix.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Copy = SchedulerPlan::Copy;
using Row = SchedulerPlan::Row;

SchedulerRequest Ask(uint64_t id, uint32_t prompt, uint64_t group = 0, uint32_t prefix = 0) {
  return {.id = id, .group = group, .order_class = 1, .prompt = prompt, .known = prompt + prefix};
}

TEST(SchedulerTest, APromptIsPrefilledInChunksThenDecoded) {
  Scheduler scheduler({.slots = 2, .max_batch_tokens = 4});
  ASSERT_TRUE(scheduler.Add(Ask(1, 6)).ok());
  EXPECT_THAT(scheduler.Plan().rows, ElementsAre(Row{1, 0, 0, 4, false}));
  scheduler.Advance({});
  EXPECT_THAT(scheduler.Plan().rows, ElementsAre(Row{1, 0, 4, 2, true}));
  scheduler.Advance({});
  EXPECT_THAT(scheduler.Plan().rows, ElementsAre(Row{1, 0, 6, 1, true}));
  scheduler.Advance({1});
  EXPECT_THAT(scheduler.Plan().rows, IsEmpty());
}

TEST(SchedulerTest, DecodesGoBeforePrefill) {
  Scheduler scheduler({.slots = 2, .max_batch_tokens = 4});
  ASSERT_TRUE(scheduler.Add(Ask(1, 2)).ok());
  scheduler.Plan();
  scheduler.Advance({});
  ASSERT_TRUE(scheduler.Add({.id = 2, .order_class = 0, .prompt = 9, .known = 9}).ok());
  EXPECT_THAT(scheduler.Plan().rows, ElementsAre(Row{1, 0, 2, 1, true}, Row{2, 1, 0, 3, false}));
}

TEST(SchedulerTest, AGroupsPromptIsComputedOnceAndCopiedButForItsLastToken) {
  Scheduler scheduler({.slots = 4, .max_batch_tokens = 16});
  for (uint64_t id : {1, 2, 3}) ASSERT_TRUE(scheduler.Add(Ask(id, 5, 7)).ok());
  EXPECT_THAT(scheduler.Plan().rows, ElementsAre(Row{1, 0, 0, 5, true}));
  scheduler.Advance({});
  EXPECT_THAT(scheduler.Plan().copies, ElementsAre(Copy{0, 1, 4}, Copy{0, 2, 4}));
  scheduler.Advance({});
  EXPECT_THAT(scheduler.Plan().rows, ElementsAre(Row{1, 0, 6, 1, true}, Row{2, 1, 5, 1, true}, Row{3, 2, 5, 1, true}));
}

TEST(SchedulerTest, AResumedMemberTakesThePromptAndPrefillsItsPrefix) {
  Scheduler scheduler({.slots = 2, .max_batch_tokens = 16});
  ASSERT_TRUE(scheduler.Add(Ask(1, 5, 7)).ok());
  ASSERT_TRUE(scheduler.Add(Ask(2, 5, 7, 3)).ok());
  scheduler.Plan();
  scheduler.Advance({});
  const SchedulerPlan& plan = scheduler.Plan();
  EXPECT_THAT(plan.copies, ElementsAre(Copy{0, 1, 4}));
  EXPECT_THAT(plan.rows, ElementsAre(Row{1, 0, 5, 1, true}, Row{2, 1, 4, 4, true}));
}

TEST(SchedulerTest, APromptComputedUnderOlderWeightsIsNotCopied) {
  Scheduler scheduler({.slots = 2, .max_batch_tokens = 16});
  ASSERT_TRUE(scheduler.Add(Ask(1, 5, 7)).ok());
  scheduler.Plan();
  scheduler.Advance({});
  scheduler.Switched(false);
  ASSERT_TRUE(scheduler.Add(Ask(2, 5, 7)).ok());
  const SchedulerPlan& plan = scheduler.Plan();
  EXPECT_THAT(plan.copies, IsEmpty());
  EXPECT_THAT(plan.rows, ElementsAre(Row{1, 0, 5, 1, true}, Row{2, 1, 0, 5, true}));
}

TEST(SchedulerTest, RecomputePrefillsRunningRequestsAgain) {
  Scheduler scheduler({.slots = 1, .max_batch_tokens = 16});
  ASSERT_TRUE(scheduler.Add(Ask(1, 3)).ok());
  scheduler.Plan();
  scheduler.Advance({});
  scheduler.Switched(true);
  EXPECT_EQ(scheduler.held_tokens(), 0u);
  EXPECT_THAT(scheduler.Plan().rows, ElementsAre(Row{1, 0, 0, 4, true}));
}

TEST(SchedulerTest, EarlierStepsGetSlotsFirstAndAnAgedRequestBeforeAll) {
  Scheduler scheduler({.slots = 1, .max_batch_tokens = 8, .aging_steps = 3});
  ASSERT_TRUE(scheduler.Add({.id = 1, .target_step = 9, .prompt = 1, .known = 1}).ok());
  ASSERT_TRUE(scheduler.Add({.id = 2, .target_step = 1, .prompt = 1, .known = 1}).ok());
  uint64_t next = 3;
  std::vector<uint64_t> order;
  for (int step = 0; step < 5; ++step) {
    const uint64_t ran = scheduler.Plan().rows.at(0).request;
    order.push_back(ran);
    scheduler.Advance({ran});
    ASSERT_TRUE(scheduler.Add({.id = next++, .target_step = 1, .prompt = 1, .known = 1}).ok());
  }
  EXPECT_THAT(order, ElementsAre(2, 3, 4, 1, 5));
}

TEST(SchedulerTest, BadRequestsAreRefused) {
  Scheduler scheduler({.slots = 1, .max_batch_tokens = 1});
  EXPECT_EQ(scheduler.Add({.id = 1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(scheduler.Add({.id = 1, .prompt = 3, .known = 2}).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(scheduler.Add(Ask(1, 1)).ok());
  EXPECT_EQ(scheduler.Add(Ask(1, 1)).code(), absl::StatusCode::kAlreadyExists);
}

// Follows a scheduler and checks each plan against what the slots really hold: which tokens of which request, under which
// weights.
class Checker {
 public:
  explicit Checker(const Scheduler::Options& options) : options_(options), scheduler_(options), slots_(options.slots) {}

  void Add(const SchedulerRequest& request, uint32_t answer) {
    ASSERT_TRUE(scheduler_.Add(request).ok());
    live_[request.id] = {request, request.known, request.known + answer, scheduler_.steps()};
  }
  void Remove(uint64_t id) {
    scheduler_.Remove(id);
    live_.erase(id);
  }
  void Switch(bool recompute) {
    scheduler_.Switched(recompute);
    ++epoch_;
    if (recompute) slots_.assign(slots_.size(), {});
  }

  void Step() {
    const SchedulerPlan& plan = scheduler_.Plan();
    ASSERT_LE(plan.tokens, options_.max_batch_tokens);
    if (!live_.empty()) {
      ASSERT_GT(plan.tokens, 0u) << "live requests, and no progress";
    }
    for (const Copy& copy : plan.copies) {
      const Slot& from = slots_[copy.from];
      ASSERT_GE(from.tokens, copy.count);
      ASSERT_TRUE(from.owner == 0 || live_.contains(from.owner));  // 0: itself a copy of this plan, made before.
      ASSERT_EQ(from.epoch, epoch_);
      slots_[copy.to] = {0, from.tokens_group, copy.count, epoch_};
    }
    std::vector<uint64_t> ended;
    std::set<uint32_t> written;
    for (const Row& row : plan.rows) {
      ASSERT_TRUE(live_.contains(row.request));
      Known& known = live_[row.request];
      Slot& slot = slots_[row.slot];
      ASSERT_TRUE(written.insert(row.slot).second);
      if (row.first == 0) slot = {row.request, known.request.group, 0, epoch_};
      if (slot.owner == 0) {
        ASSERT_EQ(slot.tokens_group, known.request.group);
        slot.owner = row.request;
      }
      ASSERT_EQ(slot.owner, row.request);
      ASSERT_EQ(slot.tokens, row.first);
      slot.tokens += row.count;
      ASSERT_LE(slot.tokens, known.known);
      ASSERT_EQ(row.sample, slot.tokens == known.known);
      if (!row.sample) continue;
      if (++known.known == known.end) ended.push_back(row.request);
    }
    for (uint64_t id : ended) {
      worst_ = std::max(worst_, scheduler_.steps() - live_[id].since);
      live_.erase(id);
      ++ended_;
    }
    scheduler_.Advance(ended);
  }

  const Scheduler& scheduler() const { return scheduler_; }
  size_t live() const { return live_.size(); }
  uint64_t AnyLive(uint64_t random) const { return std::next(live_.begin(), random % live_.size())->first; }
  uint64_t ended() const { return ended_; }
  uint64_t worst() const { return worst_; }

 private:
  struct Known {
    SchedulerRequest request;
    uint32_t known = 0, end = 0;
    uint64_t since = 0;
  };
  struct Slot {
    uint64_t owner = 0, tokens_group = 0;
    uint32_t tokens = 0;
    uint64_t epoch = 0;  // Under which position 0 was computed.
  };
  const Scheduler::Options options_;
  Scheduler scheduler_;
  std::map<uint64_t, Known> live_;
  std::vector<Slot> slots_;
  uint64_t epoch_ = 0, ended_ = 0, worst_ = 0;
};

uint64_t RunRandomly(uint64_t seed, int operations, uint64_t* ended, uint64_t* worst) {
  SplitMix64 random(seed);
  const uint32_t slots = 1 + random.Below(12);
  const Scheduler::Options options{.slots = slots,
                                   .max_batch_tokens = slots + static_cast<uint32_t>(random.Below(20)),
                                   .aging_steps = 50};
  Checker checker(options);
  uint64_t next = 1;
  for (int i = 0; i < operations && !testing::Test::HasFatalFailure(); ++i) {
    const uint64_t what = random.Below(100);
    if (what < 12 && checker.live() < 40) {
      const uint32_t members = 1 + random.Below(8), prompt = 1 + random.Below(40);
      const uint64_t group = members > 1 ? next : 0;
      for (uint32_t m = 0; m < members; ++m) {
        const uint32_t prefix = random.Below(4) == 0 ? random.Below(10) : 0;
        checker.Add({.id = next++,
                     .group = group,
                     .order_class = static_cast<uint8_t>(random.Below(4)),
                     .target_step = static_cast<int64_t>(random.Below(6)),
                     .prompt = prompt,
                     .known = prompt + prefix},
                    1 + random.Below(20));
      }
    } else if (what < 15 && checker.live() > 0) {
      checker.Remove(checker.AnyLive(random.Next()));
    } else if (what < 17) {
      checker.Switch(random.Below(2) == 0);
    } else {
      checker.Step();
    }
  }
  for (int i = 0; i < 100000 && checker.live() > 0 && !testing::Test::HasFatalFailure(); ++i) checker.Step();
  EXPECT_EQ(checker.live(), 0u);
  EXPECT_EQ(checker.scheduler().held_tokens(), 0u);
  EXPECT_EQ(checker.scheduler().running() + checker.scheduler().waiting(), 0u);
  *ended += checker.ended();
  *worst = std::max(*worst, checker.worst());
  return checker.scheduler().digest();
}

TEST(SchedulerTest, RandomEventsKeepSlotsTrueAndEveryRequestEnds) {
  uint64_t ended = 0, worst = 0;
  for (uint64_t seed = 1; seed <= 20 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const uint64_t digest = RunRandomly(seed, 1000, &ended, &worst);
    uint64_t again_ended = 0, again_worst = 0;
    EXPECT_EQ(digest, RunRandomly(seed, 1000, &again_ended, &again_worst)) << "same events, other plans";
  }
  EXPECT_GT(ended, 2000u);
  EXPECT_LT(worst, 2000u) << "a request starved";
}

}  // namespace
}  // namespace sluice
