#include "services/rollout/core/scheduler/scheduler.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "common/base/splitmix.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Drawn = Scheduler::Drawn;

KvHash Salt(uint64_t weights) { return KvSalt("job", {weights}, "float32"); }

Scheduler::Options Small(uint32_t max_running, uint32_t max_batch_tokens, uint32_t blocks = 64) {
  return {.blocks = blocks,
          .max_running = max_running,
          .max_batch_tokens = max_batch_tokens,
          .salt = Salt(0)};
}

std::vector<int32_t> Count(size_t count, int32_t from = 0) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

SchedulerRequest Ask(uint64_t id, uint32_t prompt, uint64_t group = 0, uint32_t prefix = 0,
                     uint32_t answer = 100) {
  SchedulerRequest request{.id = id,
                           .group = group,
                           .order_class = 1,
                           .prompt = prompt,
                           .end = prompt + prefix + answer};

  // Each group, or request without one, has a prompt of its own. The prefix is the member's own.
  request.tokens = Count(prompt, static_cast<int32_t>(1000 * (group != 0 ? group : id)));
  for (uint32_t i = 0; i < prefix; ++i)
    request.tokens.push_back(static_cast<int32_t>(1'000'000 + id * 100 + i));
  return request;
}

// A row of a plan: request, first position, number of tokens, whether one is sampled.
using Work = std::tuple<uint64_t, uint32_t, uint32_t, bool>;
std::vector<Work> WorkOf(const SchedulerPlan& plan) {
  std::vector<Work> work;
  for (const SchedulerPlan::Row& row : plan.rows)
    work.emplace_back(row.request, row.first, row.count, row.sample);
  return work;
}

// Plans a step. Each token that is drawn is the request's id; the requests in `ending` end with it.
std::vector<Work> Step(Scheduler* scheduler, const std::set<uint64_t>& ending = {}) {
  const SchedulerPlan& plan = scheduler->Plan();
  std::vector<Work> work = WorkOf(plan);
  std::vector<Drawn> drawn;
  for (const SchedulerPlan::Row& row : plan.rows) {
    if (row.sample)
      drawn.push_back({static_cast<int32_t>(row.request), ending.contains(row.request)});
  }
  scheduler->Advance(drawn);
  return work;
}

TEST(SchedulerTest, APromptIsPrefilledInChunksThenDecoded) {
  Scheduler scheduler(Small(2, 4));
  ASSERT_TRUE(scheduler.Add(Ask(1, 6)).ok());
  EXPECT_THAT(Step(&scheduler), ElementsAre(Work{1, 0, 4, false}));
  EXPECT_THAT(Step(&scheduler), ElementsAre(Work{1, 4, 2, true}));
  EXPECT_THAT(Step(&scheduler, {1}), ElementsAre(Work{1, 6, 1, true}));
  EXPECT_THAT(Step(&scheduler), IsEmpty());
  EXPECT_EQ(scheduler.blocks().active(), 0u);
}

TEST(SchedulerTest, DecodesGoBeforePrefill) {
  Scheduler scheduler(Small(2, 4));
  ASSERT_TRUE(scheduler.Add(Ask(1, 2)).ok());
  Step(&scheduler);
  SchedulerRequest earlier = Ask(2, 9);
  earlier.order_class = 0;
  ASSERT_TRUE(scheduler.Add(earlier).ok());
  EXPECT_THAT(Step(&scheduler), ElementsAre(Work{1, 2, 1, true}, Work{2, 0, 3, false}));
}

TEST(SchedulerTest, AGroupsPromptIsComputedOnceAndItsLastTokenByEachMember) {
  for (const uint32_t prompt : {31u, 32u, 33u, 64u}) {
    Scheduler scheduler(Small(64, 256, 300));
    for (uint64_t id = 1; id <= 64; ++id) ASSERT_TRUE(scheduler.Add(Ask(id, prompt, 7)).ok());
    EXPECT_THAT(Step(&scheduler), ElementsAre(Work{1, 0, prompt, true}));

    const SchedulerPlan& plan = scheduler.Plan();
    ASSERT_THAT(plan.rows, SizeIs(64));

    // Members share the blocks before the one with the last prompt token, which each computes in a
    // block of its own.
    const uint32_t shared = (prompt - 1) / kBlockTokens;
    std::set<int32_t> last;
    for (const SchedulerPlan::Row& row : plan.rows) {
      const Work expected =
          row.request == 1 ? Work{1, prompt, 1, true} : Work{row.request, prompt - 1, 1, true};
      EXPECT_EQ((Work{row.request, row.first, row.count, row.sample}), expected);
      for (uint32_t j = 0; j < shared; ++j) EXPECT_EQ(row.blocks[j], plan.rows[0].blocks[j]);
      last.insert(row.blocks[shared]);
    }

    EXPECT_THAT(last, SizeIs(64));
    // A last token that begins a block has nothing before it in the block to copy.
    EXPECT_THAT(plan.copies, SizeIs((prompt - 1) % kBlockTokens == 0 ? 0 : 63));
    EXPECT_EQ(scheduler.prompt_tokens_forked(), 63 * (prompt - 1));
  }
}

TEST(SchedulerTest, AllMembersMayEndInTheirFirstStep) {
  Scheduler scheduler(Small(8, 256));
  for (uint64_t id = 1; id <= 8; ++id) ASSERT_TRUE(scheduler.Add(Ask(id, 40, 7)).ok());
  std::set<uint64_t> ran;
  for (int step = 0; step < 20 && scheduler.running() + scheduler.waiting() > 0; ++step) {
    for (const Work& work : Step(&scheduler, {1, 2, 3, 4, 5, 6, 7, 8}))
      ran.insert(std::get<0>(work));
  }

  EXPECT_THAT(ran, SizeIs(8));
  EXPECT_EQ(scheduler.blocks().active(), 0u);
}

TEST(SchedulerTest, AResumedMemberTakesThePromptAndPrefillsItsPrefix) {
  Scheduler scheduler(Small(2, 16));
  ASSERT_TRUE(scheduler.Add(Ask(1, 5, 7)).ok());
  ASSERT_TRUE(scheduler.Add(Ask(2, 5, 7, 3)).ok());
  Step(&scheduler);
  EXPECT_THAT(Step(&scheduler), ElementsAre(Work{1, 5, 1, true}, Work{2, 4, 4, true}));
}

TEST(SchedulerTest, APromptThatExtendsAnotherBeginsWithItsFullBlocks) {
  Scheduler scheduler(Small(1, 256));
  // Ask() derives the tokens from the id, so `longer` begins with those of `shorter`.
  SchedulerRequest shorter = Ask(1, 64), longer = Ask(1, 65);
  longer.id = 2;
  ASSERT_TRUE(scheduler.Add(shorter).ok());
  Step(&scheduler, {1});
  ASSERT_TRUE(scheduler.Add(longer).ok());

  EXPECT_THAT(Step(&scheduler, {2}), ElementsAre(Work{2, 64, 1, true}));
  EXPECT_EQ(scheduler.prompt_tokens_cached(), 64u);

  shorter.id = 3;
  ASSERT_TRUE(scheduler.Add(shorter).ok());
  EXPECT_THAT(Step(&scheduler, {3}), ElementsAre(Work{3, 32, 32, true}))
      << "the last token is computed in a block of its own";
}

TEST(SchedulerTest, NoPromptOfOlderWeightsIsForkedOrFound) {
  Scheduler scheduler(Small(3, 256));
  ASSERT_TRUE(scheduler.Add(Ask(1, 40, 7)).ok());
  Step(&scheduler);
  scheduler.SwitchWeights(Salt(1), /*recompute=*/false);
  ASSERT_TRUE(scheduler.Add(Ask(2, 40, 7)).ok());

  EXPECT_THAT(Step(&scheduler), ElementsAre(Work{1, 40, 1, true}, Work{2, 0, 40, true}));
  EXPECT_EQ(scheduler.prompt_tokens_forked() + scheduler.prompt_tokens_cached(), 0u);
}

TEST(SchedulerTest, AnAnswerOverASwitchIsNeverFoundAgain) {
  Scheduler scheduler(Small(1, 256));
  ASSERT_TRUE(scheduler.Add(Ask(1, 40)).ok());
  Step(&scheduler);
  scheduler.SwitchWeights(Salt(1), /*recompute=*/false);
  for (int i = 0; i < 60; ++i)
    Step(&scheduler, i == 59 ? std::set<uint64_t>{1} : std::set<uint64_t>{});
  EXPECT_EQ(scheduler.blocks().cached(), 1u) << "the prompt's full block, of the older weights";

  scheduler.SwitchWeights(Salt(0), /*recompute=*/false);
  SchedulerRequest again = Ask(1, 40);
  ASSERT_TRUE(scheduler.Add(again).ok());
  EXPECT_THAT(Step(&scheduler), ElementsAre(Work{1, 32, 8, true}))
      << "under the older weights again, it is found";
}

TEST(SchedulerTest, RecomputePrefillsRunningRequestsAgain) {
  Scheduler scheduler(Small(1, 16));
  ASSERT_TRUE(scheduler.Add(Ask(1, 3)).ok());
  Step(&scheduler);
  scheduler.SwitchWeights(Salt(1), /*recompute=*/true);
  EXPECT_EQ(scheduler.blocks().active(), 0u);
  EXPECT_THAT(Step(&scheduler), ElementsAre(Work{1, 0, 4, true}));
}

SchedulerRequest AskToKeep(uint64_t id, uint32_t prompt, uint64_t group = 0) {
  SchedulerRequest request = Ask(id, prompt, group);
  request.keeps_weights = true;
  return request;
}

std::map<uint64_t, uint64_t> EpochsOf(const SchedulerPlan& plan) {
  std::map<uint64_t, uint64_t> epochs;
  for (const SchedulerPlan::Row& row : plan.rows) epochs[row.request] = row.epoch;
  return epochs;
}

TEST(SchedulerTest, AnAnswerKeepsTheWeightsOfItsFirstTokenAndOthersDoNot) {
  Scheduler scheduler(Small(3, 16));
  const uint64_t old = scheduler.epoch();
  ASSERT_TRUE(scheduler.Add(AskToKeep(1, 3)).ok());
  ASSERT_TRUE(scheduler.Add(Ask(2, 3)).ok());
  Step(&scheduler);
  // This one's prompt takes two steps, so it has no token yet when the weights change.
  ASSERT_TRUE(scheduler.Add(AskToKeep(3, 20)).ok());
  Step(&scheduler);
  EXPECT_EQ(scheduler.keepers(old), 1u);

  scheduler.SwitchWeights(Salt(1), /*recompute=*/true);
  const uint64_t now = scheduler.epoch();
  const SchedulerPlan& plan = scheduler.Plan();
  EXPECT_THAT(WorkOf(plan),
              ElementsAre(Work{1, 4, 1, true}, Work{2, 0, 5, true}, Work{3, 0, 10, false}))
      << "only the first goes on; the others are computed again";
  EXPECT_EQ(EpochsOf(plan), (std::map<uint64_t, uint64_t>{{1, old}, {2, now}, {3, now}}));
  scheduler.Advance({{Drawn{5, true}, Drawn{5, true}}});
  EXPECT_EQ(scheduler.keepers(old), 0u);
  Step(&scheduler);
  EXPECT_EQ(scheduler.keepers(now), 1u);
}

TEST(SchedulerTest, APreemptedAnswerGoesOnWithItsWeightsAndSharesOnlyWithAnswersOfThese) {
  Scheduler scheduler(Small(4, 256, 6));
  const uint64_t old = scheduler.epoch();
  ASSERT_TRUE(scheduler.Add(AskToKeep(1, 40, 7)).ok());
  ASSERT_TRUE(scheduler.Add(AskToKeep(2, 40, 7)).ok());
  Step(&scheduler);
  Step(&scheduler);
  scheduler.SwitchWeights(Salt(1), /*recompute=*/false);
  const uint64_t forked = scheduler.prompt_tokens_forked();
  ASSERT_TRUE(scheduler.Add(AskToKeep(3, 40, 7)).ok());
  EXPECT_EQ(EpochsOf(scheduler.Plan()).at(3), scheduler.epoch());
  scheduler.Advance({{Drawn{1}, Drawn{2}, Drawn{3}}});
  EXPECT_EQ(scheduler.prompt_tokens_forked(), forked) << "its siblings are of older weights";
  EXPECT_EQ(scheduler.prompt_tokens_cached(), 0u);

  // There are six blocks; three answers of more than 64 tokens do not fit.
  std::set<uint64_t> preempted;
  for (int step = 0; step < 60 && preempted.empty(); ++step) {
    const SchedulerPlan& plan = scheduler.Plan();
    preempted.insert(plan.preempted.begin(), plan.preempted.end());
    std::vector<Drawn> drawn;
    for (const SchedulerPlan::Row& row : plan.rows) {
      EXPECT_EQ(row.epoch, row.request == 3 ? scheduler.epoch() : old);
      if (row.sample) drawn.push_back({7});
    }
    scheduler.Advance(drawn);
  }
  EXPECT_THAT(preempted, SizeIs(1));
  EXPECT_EQ(scheduler.keepers(old) + scheduler.keepers(scheduler.epoch()), 3u)
      << "one that waits keeps its weights too";

  scheduler.DropKeptWeights();
  scheduler.SwitchWeights(Salt(2), /*recompute=*/false);
  EXPECT_EQ(scheduler.keepers(old), 0u);
  for (const auto& [request, epoch] : EpochsOf(scheduler.Plan()))
    EXPECT_EQ(epoch, scheduler.epoch()) << request;
}

TEST(SchedulerTest, OneThatDoesNotAgeWaitsForAsLongAsOthersWantItsPlace) {
  Scheduler::Options options = Small(1, 16);
  options.aging_steps = 3;
  Scheduler scheduler(options);
  SchedulerRequest idle = Ask(100, 5);
  idle.order_class = 4;
  idle.ages = false;
  ASSERT_TRUE(scheduler.Add(Ask(1, 5)).ok());
  ASSERT_TRUE(scheduler.Add(idle).ok());

  // Runs a step that ends its only request, and returns the request's id.
  const auto ran = [&] {
    const uint64_t id = scheduler.Plan().rows.at(0).request;
    scheduler.Advance({{Drawn{5, true}}});
    return id;
  };

  for (uint64_t next = 2; next < 12; ++next) {
    ASSERT_TRUE(scheduler.Add(Ask(next, 5)).ok());
    EXPECT_NE(ran(), 100u);
  }

  EXPECT_NE(ran(), 100u) << "the last of the others";
  EXPECT_EQ(ran(), 100u);
}

TEST(SchedulerTest, EarlierStepsRunFirstAndAnAgedRequestBeforeAll) {
  Scheduler::Options options = Small(1, 8);
  options.aging_steps = 3;
  Scheduler scheduler(options);
  const auto ask = [](uint64_t id, int64_t step) {
    SchedulerRequest request = Ask(id, 1);
    request.target_step = step;
    return request;
  };

  ASSERT_TRUE(scheduler.Add(ask(1, 9)).ok());
  ASSERT_TRUE(scheduler.Add(ask(2, 1)).ok());

  std::vector<uint64_t> order;
  for (uint64_t next = 3; next < 8; ++next) {
    const uint64_t ran = scheduler.Plan().rows.at(0).request;
    order.push_back(ran);
    scheduler.Advance({{Drawn{5, true}}});
    ASSERT_TRUE(scheduler.Add(ask(next, 1)).ok());
  }

  // Request 1 is of a later step, but has aged after three steps.
  EXPECT_THAT(order, ElementsAre(2, 3, 4, 1, 5));
}

TEST(SchedulerTest, ARunningRequestWhosePrefillNeverFitsTheStepAgesToo) {
  Scheduler::Options options = Small(3, 4);
  options.aging_steps = 20;
  Scheduler scheduler(options);
  ASSERT_TRUE(scheduler.Add(Ask(1, 30)).ok());
  Step(&scheduler);

  // In each step an earlier class has a prompt that takes the whole step.
  bool ended = false;
  for (uint64_t id = 2; id < 100 && !ended; ++id) {
    SchedulerRequest earlier = Ask(id, 4);
    earlier.order_class = 0;
    ASSERT_TRUE(scheduler.Add(earlier).ok());
    for (const Work& work : Step(&scheduler, {1, id}))
      ended = ended || (std::get<0>(work) == 1 && std::get<3>(work));
  }

  EXPECT_TRUE(ended);
}

TEST(SchedulerTest, TheMemberOfAGroupWithLongAnswersGoesFirst) {
  Scheduler scheduler(Small(1, 64));
  ASSERT_TRUE(scheduler.Add(Ask(1, 4, 1)).ok());
  ASSERT_TRUE(scheduler.Add(Ask(2, 4, 2)).ok());
  Step(&scheduler, {1});  // One token.
  for (int i = 0; i < 50; ++i)
    Step(&scheduler, i == 49 ? std::set<uint64_t>{2} : std::set<uint64_t>{});

  ASSERT_TRUE(scheduler.Add(Ask(3, 4, 3)).ok());
  for (int i = 0; i < 9; ++i) Step(&scheduler);

  // A sibling has 9 tokens so far. Its length counts only at each 32nd token and at its end.
  ASSERT_TRUE(scheduler.Add(Ask(4, 4, 3)).ok());
  ASSERT_TRUE(scheduler.Add(Ask(5, 4, 5)).ok());
  Step(&scheduler, {3});

  const std::vector<Work> next = Step(&scheduler, {5});
  EXPECT_EQ(std::get<0>(next.at(0)), 5u)
      << "its group has no answer yet, so it is predicted to be long; 4's sibling ended at 10";
}

TEST(SchedulerTest, OutOfBlocksTheLastIsPreemptedAndKeepsItsTokens) {
  Scheduler scheduler(Small(2, 64, 4));  // Each request needs three blocks.
  for (uint64_t id : {1, 2}) ASSERT_TRUE(scheduler.Add(Ask(id, 31, 0, 0, 60)).ok());

  // `known` is the number of tokens in the newest row of request 2. The request ends with its token
  // 91 = 31 + 60, which is in no row.
  uint32_t known = 0;
  uint64_t preempted = 0;
  for (int step = 0; step < 400 && scheduler.running() + scheduler.waiting() > 0; ++step) {
    const SchedulerPlan& plan = scheduler.Plan();
    for (uint64_t id : plan.preempted) {
      EXPECT_EQ(id, 2u);
      ++preempted;
    }
    std::vector<Drawn> drawn;
    for (const SchedulerPlan::Row& row : plan.rows) {
      if (row.request == 2) {
        EXPECT_GE(row.tokens.size(), known);
        known = static_cast<uint32_t>(row.tokens.size());
      }
      if (row.sample)
        drawn.push_back({static_cast<int32_t>(row.tokens.size()), row.tokens.size() + 1 == 91});
    }
    scheduler.Advance(drawn);
  }

  EXPECT_EQ(preempted, 1u);
  EXPECT_EQ(known, 90u);
  EXPECT_EQ(scheduler.preemptions(), 1u);
  EXPECT_EQ(scheduler.blocks().active(), 0u);
}

TEST(SchedulerTest, TheMemberThatOthersForkedFromMayLoseItsBlocks) {
  // The members share the prompt's first block, and each has a second one of its own. No block is
  // left for position 64.
  Scheduler scheduler(Small(4, 256, 4));
  std::vector<SchedulerRequest> members = {Ask(1, 63, 7, 0, 5), Ask(2, 63, 7, 0, 5),
                                           Ask(3, 63, 7, 0, 5)};
  for (SchedulerRequest& member : members) member.order_class = member.id == 1 ? 3 : 0;
  ASSERT_TRUE(scheduler.Add(members[0]).ok());
  Step(&scheduler);
  for (int i : {1, 2}) ASSERT_TRUE(scheduler.Add(members[i]).ok());
  Step(&scheduler);

  EXPECT_EQ(scheduler.prompt_tokens_forked(), 2 * 62u);
  EXPECT_THAT(Step(&scheduler), ElementsAre(Work{2, 63, 1, true}, Work{3, 63, 1, true}))
      << "the first waits for a block";

  const SchedulerPlan& plan = scheduler.Plan();
  EXPECT_THAT(plan.preempted, ElementsAre(1));
  EXPECT_THAT(WorkOf(plan), ElementsAre(Work{2, 64, 1, true}));
  EXPECT_EQ(scheduler.blocks().references(plan.rows[0].blocks[0]), 2u) << "the third member's too";

  scheduler.Advance({{Drawn{2, false}}});

  // How many tokens each has. An answer ends at 68 = 63 + 5.
  std::map<uint64_t, uint32_t> known = {{2, 66}};
  for (int step = 0; step < 40 && scheduler.running() + scheduler.waiting() > 0; ++step) {
    std::vector<Drawn> drawn;
    for (const SchedulerPlan::Row& row : scheduler.Plan().rows) {
      if (!row.sample) continue;
      known[row.request] = static_cast<uint32_t>(row.tokens.size() + 1);
      drawn.push_back({static_cast<int32_t>(row.request), row.tokens.size() + 1 == 68});
    }
    scheduler.Advance(drawn);
  }

  EXPECT_THAT(known, ElementsAre(std::pair(1, 68), std::pair(2, 68), std::pair(3, 68)));
  EXPECT_EQ(scheduler.blocks().active(), 0u);
}

TEST(SchedulerTest, HowManyRunFollowsTheUseOfThePool) {
  Scheduler scheduler({.blocks = 100,
                       .max_running = 256,
                       .adapt = true,
                       .max_batch_tokens = 4096,
                       .salt = Salt(0)});
  for (uint64_t id = 1; id <= 200; ++id) ASSERT_TRUE(scheduler.Add(Ask(id, 20, 0, 0, 200)).ok());
  Step(&scheduler);

  EXPECT_EQ(scheduler.running(), 90u) << "a block each, and none is begun above 0.9";

  for (int i = 0; i < 150; ++i) Step(&scheduler);
  EXPECT_LT(scheduler.running(), 30u) << "answers grew";
  EXPECT_LT(scheduler.limit(), 30u) << "the limit falls with their number";

  for (uint64_t id = 1; id <= 200; ++id) scheduler.Remove(id);
  for (uint64_t id = 1001; id <= 1060; ++id) ASSERT_TRUE(scheduler.Add(Ask(id, 2)).ok());
  for (int i = 0; i < 25; ++i) Step(&scheduler);
  EXPECT_EQ(scheduler.running(), 60u) << "raised again while there is room";
  EXPECT_LE(scheduler.limit(), 256u);
}

TEST(SchedulerTest, BadRequestsAreRefused) {
  Scheduler scheduler(Small(1, 1, 2));
  EXPECT_EQ(scheduler.Add({.id = 1}).code(), absl::StatusCode::kInvalidArgument);

  SchedulerRequest request = Ask(1, 3);
  request.prompt = 4;
  EXPECT_EQ(scheduler.Add(request).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(scheduler.Add(Ask(1, 3, 0, 0, 0)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(scheduler.Add(Ask(1, 32, 0, 0, 34)).message(),
              testing::HasSubstr("need 3 blocks of 32; the KV cache has 2"));

  ASSERT_TRUE(scheduler.Add(Ask(1, 32, 0, 0, 33)).ok()) << "the last token is never computed";
  EXPECT_EQ(scheduler.Add(Ask(1, 1, 0, 0, 1)).code(), absl::StatusCode::kAlreadyExists);
}

// Drives a scheduler and checks each plan with a simulated KV cache: the keys and values of a
// position are a hash of all tokens up to it and of the weights that each was computed with.
class Checker {
 public:
  explicit Checker(const Scheduler::Options& options)
      : options_(options), scheduler_(options), pool_(options.blocks) {}

  void Add(SchedulerRequest request, uint32_t answer) {
    request.end = static_cast<uint32_t>(request.tokens.size()) + answer;
    if (BlocksFor(request.end - 1) > options_.blocks) return;
    live_[request.id] = {.tokens = request.tokens,
                         .prompt = request.prompt,
                         .end = request.end,
                         .since = scheduler_.steps()};
    ASSERT_TRUE(scheduler_.Add(std::move(request)).ok());
  }

  void Remove(uint64_t id) {
    scheduler_.Remove(id);
    live_.erase(id);
  }

  void Switch(uint64_t weights, bool recompute) {
    scheduler_.SwitchWeights(Salt(weights), recompute);
    weights_ = weights;
    if (!recompute) return;
    for (auto& [id, known] : live_) known.written.clear();
  }

  void Step(SplitMix64* random) {
    const SchedulerPlan& plan = scheduler_.Plan();
    ASSERT_LE(plan.tokens, options_.max_batch_tokens);
    if (!live_.empty()) {
      ASSERT_GT(plan.tokens, 0u) << "there are live requests, and nothing is computed";
    }
    for (uint64_t id : plan.preempted) live_.at(id).written.clear();
    for (const BlockManager::Copy& copy : plan.copies) pool_[copy.to] = pool_[copy.from];

    // In how many tables each block is. A row must share no block that it writes (ComputeRow()).
    std::map<int32_t, int> holders;
    for (const SchedulerPlan::Row& row : plan.rows) {
      for (int32_t block : row.blocks) ++holders[block];
    }

    std::vector<Drawn> drawn;
    std::vector<uint64_t> ended;
    for (const SchedulerPlan::Row& row : plan.rows) {
      ASSERT_TRUE(live_.contains(row.request));
      Known& known = live_[row.request];
      ASSERT_EQ(absl::MakeConstSpan(known.tokens), row.tokens);
      ASSERT_GT(row.count, 0u);
      ComputeRow(row, holders, &known);
      if (testing::Test::HasFatalFailure()) return;
      ASSERT_EQ(row.sample, row.first + row.count == known.tokens.size());
      if (!row.sample) continue;

      // If `fails`, no token could be drawn, which -1 says.
      const bool fails = random->Below(200) == 0;
      known.tokens.push_back(static_cast<int32_t>(random->Below(3)));
      const bool ends = fails || known.tokens.size() == known.end || random->Below(60) == 0;
      drawn.push_back({fails ? -1 : known.tokens.back(), ends});
      if (ends) ended.push_back(row.request);
    }

    for (uint64_t id : ended) {
      worst_ = std::max(worst_, scheduler_.steps() - live_[id].since);
      live_.erase(id);
      ++ended_;
    }
    scheduler_.Advance(drawn);
  }

  const Scheduler& scheduler() const { return scheduler_; }
  size_t live() const { return live_.size(); }
  uint64_t AnyLive(uint64_t random) const {
    return std::next(live_.begin(), static_cast<ptrdiff_t>(random % live_.size()))->first;
  }

  uint64_t ended() const { return ended_; }
  uint64_t worst() const { return worst_; }

 private:
  struct Known {
    std::vector<int32_t> tokens;
    uint32_t prompt = 0, end = 0;
    uint64_t since = 0;             // The step at which it was added.
    std::vector<uint64_t> written;  // What the pool must hold for it, by position.
  };

  // Computes the row's positions in the simulated cache, and checks what it holds before them.
  void ComputeRow(const SchedulerPlan::Row& row, const std::map<int32_t, int>& holders,
                  Known* known) {
    ASSERT_GE(row.blocks.size() * kBlockTokens, row.first + row.count);
    ASSERT_GE(row.first, known->written.size());

    // What the request did not compute itself it shares or found in the cache. It must be what the
    // current weights would have computed.
    ASSERT_TRUE(row.first == known->written.size() || known->written.empty());
    while (known->written.size() < row.first) known->written.push_back(Next(*known));
    for (uint32_t at = 0; at < row.first; ++at)
      ASSERT_EQ(pool_[row.blocks[at / kBlockTokens]][at % kBlockTokens], known->written[at]) << at;

    for (uint32_t at = row.first; at < row.first + row.count; ++at) {
      const int32_t block = row.blocks[at / kBlockTokens];
      ASSERT_EQ(holders.at(block), 1);
      ASSERT_EQ(scheduler_.blocks().references(block), 1u);
      ASSERT_FALSE(scheduler_.blocks().indexed(block));
      known->written.push_back(Next(*known));
      pool_[block][at % kBlockTokens] = known->written.back();
    }
  }

  // Returns what the next position of `known` must hold: a hash of the position before, the token
  // and the weights.
  uint64_t Next(const Known& known) const {
    const uint64_t before = known.written.empty() ? 7 : known.written.back();
    return Mix64(Mix64(before + kGolden) ^
                 (static_cast<uint64_t>(known.tokens[known.written.size()]) << 8) ^ weights_);
  }

  const Scheduler::Options options_;
  Scheduler scheduler_;
  std::map<uint64_t, Known> live_;
  std::vector<std::array<uint64_t, kBlockTokens>> pool_;
  // `worst_`: the most steps that a request took from Add() to its end.
  uint64_t weights_ = 0, ended_ = 0, worst_ = 0;
};

struct Totals {
  uint64_t ended = 0, worst = 0, preempted = 0, forked = 0, cached = 0;
};

// Runs random operations, then steps until all requests have ended. Returns a digest of the plans.
uint64_t RunRandomly(uint64_t seed, int operations, Totals* totals) {
  SplitMix64 random(seed);
  const uint32_t most = 1 + static_cast<uint32_t>(random.Below(12));
  const Scheduler::Options options{
      .blocks = 4 + static_cast<uint32_t>(random.Below(30)),
      .max_running = most,
      .adapt = random.Below(4) == 0,
      .max_batch_tokens = most + static_cast<uint32_t>(random.Below(60)),
      .aging_steps = 50,
      .salt = Salt(0)};

  Checker checker(options);
  uint64_t next = 1;
  for (int i = 0; i < operations && !testing::Test::HasFatalFailure(); ++i) {
    const uint64_t what = random.Below(100);
    if (what < 12 && checker.live() < 40) {
      const uint32_t members = 1 + static_cast<uint32_t>(random.Below(8)),
                     prompt = 1 + static_cast<uint32_t>(random.Below(70));
      const uint64_t group = members > 1 ? next : 0;
      std::vector<int32_t> tokens = Count(prompt, static_cast<int32_t>(random.Below(3)));
      for (uint32_t m = 0; m < members; ++m) {
        SchedulerRequest request{.id = next++,
                                 .group = group,
                                 .order_class = static_cast<uint8_t>(random.Below(4)),
                                 .target_step = static_cast<int64_t>(random.Below(6)),
                                 .prompt = prompt,
                                 .tokens = tokens};
        const uint64_t prefix = random.Below(4) == 0 ? random.Below(10) : 0;
        for (uint64_t t = 0; t < prefix; ++t)
          request.tokens.push_back(static_cast<int32_t>(random.Below(3)));
        checker.Add(std::move(request), 1 + static_cast<uint32_t>(random.Below(60)));
      }
    } else if (what < 15 && checker.live() > 0) {
      checker.Remove(checker.AnyLive(random.Next()));
    } else if (what < 17) {
      checker.Switch(random.Below(3), random.Below(2) == 0);
    } else {
      checker.Step(&random);
    }
  }

  for (int i = 0; i < 100000 && checker.live() > 0 && !testing::Test::HasFatalFailure(); ++i)
    checker.Step(&random);

  EXPECT_EQ(checker.live(), 0u);
  EXPECT_EQ(checker.scheduler().blocks().active(), 0u) << "a block leaked";
  EXPECT_EQ(checker.scheduler().running() + checker.scheduler().waiting(), 0u);

  totals->ended += checker.ended();
  totals->worst = std::max(totals->worst, checker.worst());
  totals->preempted += checker.scheduler().preemptions();
  totals->forked += checker.scheduler().prompt_tokens_forked();
  totals->cached += checker.scheduler().prompt_tokens_cached();
  return checker.scheduler().digest();
}

TEST(SchedulerTest, AHundredThousandRandomEventsKeepBlocksTrueAndEveryRequestEnds) {
  Totals totals;
  for (uint64_t seed = 1; seed <= 100 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const uint64_t digest = RunRandomly(seed, 1000, &totals);
    Totals again;
    EXPECT_EQ(digest, RunRandomly(seed, 1000, &again)) << "the same events gave other plans";
  }

  EXPECT_GT(totals.ended, 10000u);
  EXPECT_GT(totals.preempted, 500u);
  EXPECT_GT(totals.forked, 10000u);
  EXPECT_GT(totals.cached, 10000u);
  EXPECT_LT(totals.worst, 5000u) << "a request starved";
}

}  // namespace
}  // namespace sluice
