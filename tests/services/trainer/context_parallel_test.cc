// Long sequences that all ranks compute together, against one rank that computes them alone.

#include "services/trainer/core/context_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/services/trainer/all_algorithms.h"
#include "tests/services/trainer/experts_fixture.h"
#include "tests/services/trainer/ranks_fixture.h"

namespace sluice::trainer {
namespace {

// Makes some answers of a batch longer by up to `most` tokens.
std::vector<Group> Lengthen(std::vector<Group> batch, uint64_t seed, uint64_t most = 24) {
  SplitMix64 random(seed);
  for (Group& group : batch) {
    for (Trajectory& t : group.members) {
      if (random.Below(2) == 0) continue;
      for (uint64_t n = random.Below(most + 1); n > 0; --n) {
        t.tokens.push_back(static_cast<int32_t>(random.Below(kVocab)));
        t.mask.push_back(t.mask.back());
        t.logprobs.push_back(t.logprobs.back());
        t.versions.push_back(t.versions.back());
      }
      // The last turn has all of them.
      t.turns.back().count = t.tokens.size() - t.turns.back().first;
    }
  }
  return batch;
}

Settings ContextSettings() {
  Settings settings = BaseSettings();
  settings.optimizer.lr = 1e-4;
  settings.micro_batch_tokens = 9;
  settings.context = true;
  return settings;
}

class ContextParallelTest : public RanksTest, public testing::WithParamInterface<Shard> {};
INSTANTIATE_TEST_SUITE_P(Of, ContextParallelTest, testing::ValuesIn(kShards), [](const auto& info) {
  return absl::StrReplaceAll(ShardText(info.param), {{" ", "_"}});
});

TEST_P(ContextParallelTest, T19LongSequencesTrainAsOnOneRank) {
  Settings settings = ContextSettings();
  settings.shard = GetParam();
  ExpectSameRun(
      settings, 3, 2, [](int64_t k) { return Lengthen(UnequalBatch(60 + k, k, 6), 20 + k); }, 1e-6);
}

TEST_F(ContextParallelTest, T19EveryAlgorithmTakesSharedSequences) {
  int world = 2, tried = 0;
  size_t next_shard = 0;
  for (auto& [name, settings] : AllAlgorithms()) {
    settings.context = true;
    settings.micro_batch_tokens = 9;
    settings.shard = kShards[next_shard++ % std::size(kShards)];
    if (!Validate(settings).ok()) settings.shard = Shard::kOptimizer;
    SCOPED_TRACE(absl::StrCat(name, ", ", world, " ranks, ", ShardText(settings.shard)));
    if (settings.algorithm.advantage.kind == "min_variance") {
      EXPECT_EQ(Validate(settings).code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ASSERT_EQ(Validate(settings), absl::OkStatus());
    ExpectSameRun(
        settings, world, 1, [&](int64_t k) { return Lengthen(RandomBatch(40 + k, 3, k), 20 + k); },
        1e-4);
    world = world == 2 ? 3 : 2;
    ++tried;
  }
  EXPECT_GE(tried, 20);
}

TEST_P(ContextParallelTest, T19TermsWithFactorsOfTheirOwnGoToTheirGradients) {
  Settings settings = ContextSettings();
  settings.max_staleness = 0;
  settings.algorithm.loss.kl = 0.1;
  settings.algorithm.loss.entropy = 0.01;
  settings.reference = true;
  settings.optimizer.eps = 1e-3;
  settings.shard = GetParam();
  ASSERT_TRUE(Streams(settings));
  ExpectSameRun(
      settings, 3, 2, [](int64_t k) { return Lengthen(UnequalBatch(50 + k, k, 7), k); }, 1e-4);
}

// The groups come one by one, so a rank is done with its short sequences while others wait for it.
TEST_P(ContextParallelTest, T19StreamedGroupsAreSharedAsTheyCome) {
  Settings settings = ContextSettings();
  settings.max_staleness = 0;
  settings.shard = GetParam();
  ASSERT_TRUE(Streams(settings));
  const std::unique_ptr<Trainer> alone = Make(settings);
  RankGroup group(3, model_.config, settings);
  Load(*group, settings);
  for (int64_t k = 0; k < 2; ++k) {
    for (Group& g : Lengthen(UnequalBatch(90 + k, k, 7), k)) {
      ASSERT_TRUE(alone->Add(k, {g}).ok());
      ASSERT_TRUE(group->Add(k, {g}).ok());
    }
    EXPECT_NEAR(alone->Finish(k)->loss, group->Finish(k)->loss, 1e-5);
  }
  EXPECT_LE(MaxDifference(*alone->Weights(), *group->Weights()), 1e-6);
}

// Of four answers, two are longer than a micro-batch. The reference scores them too.
TEST_P(ContextParallelTest, OnlyLongSequencesAreSharedAndThoseOfAllModels) {
  const auto batch = [](int64_t k) {
    std::vector<Group> groups = UnequalBatch(1, k, 1);
    groups[0].members.resize(2);
    groups.push_back(groups[0]);
    groups[1].id.bytes[0] ^= 1;
    for (Group& group : groups) {
      Trajectory& t = group.members[0];
      t.tokens.insert(t.tokens.end(), 20, 3);
      t.mask.insert(t.mask.end(), 20, 1);
      t.logprobs.insert(t.logprobs.end(), 20, -1.0f);
      t.versions.insert(t.versions.end(), 20, k);
      t.turns.clear();
    }
    return groups;
  };
  for (const bool reference : {false, true}) {
    Settings settings = ContextSettings();
    settings.shard = GetParam();
    settings.reference = reference;
    settings.algorithm.loss.kl = reference ? 0.1 : 0;
    RankGroup group(2, model_.config, settings);
    Load(*group, settings);
    const StepResult result = Run(*group, 0, batch(0));
    EXPECT_EQ(result.metrics.at("context_passes"), reference ? 4 : 2);
  }
}

// The ranks have unequal memory, and have fitted their micro-batches to it.
TEST_P(ContextParallelTest, TheRanksTakeTheSmallestMicroBatchThatOneOfThemHas) {
  Settings settings = ContextSettings();
  settings.shard = GetParam();
  const std::unique_ptr<Trainer> alone = Make(settings);
  RankGroup group(3, model_.config, [&](int rank) {
    Settings own = settings;
    own.micro_batch_tokens += 5 * ((rank + 1) % 3);
    return own;
  });
  Load(*group, settings);
  for (int64_t k = 0; k < 3; ++k) {
    const std::vector<Group> batch = Lengthen(UnequalBatch(40 + k, k, 6), k);
    EXPECT_NEAR(Run(*group, k, batch).loss, Run(*alone, k, batch).loss, 1e-5);
  }
  EXPECT_LE(MaxDifference(*alone->Weights(), *group->Weights()), 1e-6);
}

// A rank that has none of the rows to score in its parts takes part all the same.
TEST_P(ContextParallelTest, T19OneTrainedTokenBehindALongPromptIsEnough) {
  Settings settings = ContextSettings();
  settings.shard = GetParam();
  ExpectSameRun(
      settings, 3, 2,
      [](int64_t k) {
        std::vector<Group> batch = UnequalBatch(30 + k, k, 4);
        for (Group& group : batch) {
          for (Trajectory& t : group.members) {
            t.tokens.insert(t.tokens.begin(), 20, 3);
            t.mask.insert(t.mask.begin(), 20, 0);
            t.logprobs.insert(t.logprobs.begin(), 20, std::nanf(""));
            t.versions.insert(t.versions.begin(), 20, -1);
            for (size_t i = 0; i + 1 < t.mask.size(); ++i) t.mask[i] = 0;
            t.turns = {{.first = t.tokens.size() - 1, .count = 1, .seconds = 1}};
          }
        }
        return batch;
      },
      1e-6);
}

TEST_P(ContextParallelTest, PairsAndDemonstrationsAreSharedToo) {
  Settings dpo = DpoSettings();
  dpo.context = true;
  dpo.micro_batch_tokens = 9;
  dpo.shard = GetParam();
  ExpectSameRun(dpo, 3, 2, [](int64_t k) { return Lengthen(Pairs(5 + k), k); }, 1e-4);
  Settings sft;
  sft.kind = Settings::Kind::kSft;
  sft.context = true;
  sft.micro_batch_tokens = 9;
  sft.shard = GetParam();
  ExpectSameRun(
      sft, 3, 2, [](int64_t k) { return AsDemonstrations(Lengthen(RandomBatch(5 + k, 9), k)); },
      1e-6);
}

// Log-probs do not depend on who computes them, so the losses of held-out rows have the same bits.
TEST_P(ContextParallelTest, TheLossOfRowsHasTheBitsOfOneRank) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Settings settings;
    settings.kind = Settings::Kind::kSft;
    settings.dtype = dtype;
    settings.context = true;
    settings.micro_batch_tokens = 9;
    settings.shard = GetParam();
    const std::vector<Group> rows = AsDemonstrations(Lengthen(RandomBatch(3, 9), 4, 40));
    const std::unique_ptr<Trainer> alone = Make(settings);
    const HeldOutSums expected = *alone->Evaluate(rows);
    for (const int world : {2, 3}) {
      RankGroup group(world, model_.config, settings);
      Load(*group, settings);
      const absl::StatusOr<HeldOutSums> sums = group->Evaluate(rows);
      ASSERT_TRUE(sums.ok()) << sums.status();
      EXPECT_EQ(sums->loss, expected.loss);
      EXPECT_EQ(sums->tokens, expected.tokens);
    }
  }
}

TEST_P(ContextParallelTest, ARankThatLeavesInTheMiddleOfAStepEndsTheOthers) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE(seed);
    SplitMix64 random(seed);
    Settings settings = ContextSettings();
    settings.shard = GetParam();
    RankGroup group(3, model_.config, settings);
    Load(*group, settings);
    std::thread leave([&group, turns = random.Below(2000)] {
      for (uint64_t i = 0; i < turns; ++i) std::this_thread::yield();
      group.Leave(2);
    });
    absl::Status status;
    for (int64_t k = 0; status.ok() && k < 1000; ++k) {
      status = group->Add(k, Lengthen(RandomBatch(seed + k, 6, k), k));
      if (status.ok()) status = group->Finish(k).status();
    }
    leave.join();
    EXPECT_EQ(ReasonOf(status), "RANK_LOST") << status;
    group.Stop();
    EXPECT_EQ(ReasonOf(group.end(1)), "RANK_LOST") << group.end(1);
    EXPECT_FALSE(group.end(2).ok());
  }
}

class ExpertContextTest : public RanksTest, public testing::WithParamInterface<Shard> {
 protected:
  ExpertContextTest() : RanksTest(TinyExpertsDir(kVocab)) {}
};
INSTANTIATE_TEST_SUITE_P(Of, ExpertContextTest, testing::ValuesIn(kShards), [](const auto& info) {
  return absl::StrReplaceAll(ShardText(info.param), {{" ", "_"}});
});

TEST_P(ExpertContextTest, T19RecordedExpertsAndTheirBalanceAreThoseOfOneRank) {
  for (const bool balance : {false, true}) {
    SCOPED_TRACE(balance);
    Settings settings = ContextSettings();
    settings.shard = GetParam();
    settings.algorithm.loss.router_balance = balance ? 0.5 : 0;
    ExpectSameRun(
        settings, 3, 2,
        [](int64_t k) {
          std::vector<Group> batch = Lengthen(UnequalBatch(60 + k, k, 4), k);
          return k % 2 == 0 ? WithRouting(std::move(batch), 5 + k) : batch;
        },
        1e-6);
  }
}

}  // namespace
}  // namespace sluice::trainer
