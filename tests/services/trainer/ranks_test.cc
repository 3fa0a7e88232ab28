// Training with several ranks, against the same training with one.

#include "services/trainer/core/ranks.h"

#include <gmock/gmock.h>

#include <limits>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "services/trainer/core/experience_codec.h"
#include "tests/services/trainer/all_algorithms.h"
#include "tests/services/trainer/experts_fixture.h"
#include "tests/services/trainer/pairs_fixture.h"
#include "tests/services/trainer/ranks_fixture.h"

namespace sluice::trainer {
namespace {

class ShardedRanksTest : public RanksTest, public testing::WithParamInterface<Shard> {};
INSTANTIATE_TEST_SUITE_P(Of, ShardedRanksTest, testing::ValuesIn(kShards), [](const auto& info) {
  return absl::StrReplaceAll(ShardText(info.param), {{" ", "_"}});
});

TEST_F(RanksTest, T19TheNumberOfRanksChangesNoResultUnderAnyAlgorithm) {
  int world = 2;
  size_t next_shard = 0;
  for (auto& [name, settings] : AllAlgorithms()) {
    settings.shard = kShards[next_shard++ % std::size(kShards)];
    settings.minibatches = world == 4 && !Streams(settings) ? 2 : 1;
    if (!Validate(settings).ok()) settings.minibatches = 1;
    if (!Validate(settings).ok()) settings.shard = Shard::kOptimizer;
    SCOPED_TRACE(absl::StrCat(name, ", ", world, " ranks, ", ShardText(settings.shard)));
    ASSERT_EQ(Validate(settings), absl::OkStatus());
    ExpectSameRun(settings, world, 2, [&](int64_t k) { return RandomBatch(40 + k, 5, k); }, 1e-4);
    world = world == 4 ? 2 : world + 1;
  }
}

TEST_P(ShardedRanksTest, T19TwentyStepsWithEachNumberOfRanksEndAtTheSameWeights) {
  for (const int world : {1, 2, 3, 4}) {
    SCOPED_TRACE(absl::StrCat(world, " ranks"));
    Settings settings = BaseSettings();
    settings.optimizer.lr = 1e-4;
    settings.shard = GetParam();
    ExpectSameRun(settings, world, 20, [&](int64_t k) { return UnequalBatch(60 + k, k, 6); }, 1e-6);
  }
}

TEST_F(RanksTest, T19RewardsOfSingleTokensAndTheTimesOfTurnsAreSharedToo) {
  for (const int world : {2, 3}) {
    for (const char* kind : {"reinforce_pp", "gae"}) {
      SCOPED_TRACE(absl::StrCat(kind, ", ", world, " ranks"));
      Settings settings = BaseSettings();
      settings.optimizer.eps = 1e-3;
      settings.critic.lr = 1e-2;
      settings.algorithm.advantage.kind = kind;
      settings.algorithm.advantage.duration_aware = true;
      const auto batch = [&](int64_t k) {
        std::vector<Group> groups = UnequalBatch(70 + k, k, 5);
        RewardTokens(70 + k, groups);
        return groups;
      };
      ExpectSameRun(settings, world, 2, batch, 1e-4);
    }
  }
}

TEST_F(RanksTest, T19ARankWithoutATrainedTokenTakesPart) {
  for (const int i : {0, 1, 2, 3, 4, 5}) {
    const bool stream = i % 2 == 1;
    Settings settings = BaseSettings();
    settings.optimizer.eps = 1e-3;  // The update follows small gradients smoothly.
    settings.shard = kShards[i / 2];
    SCOPED_TRACE(absl::StrCat(ShardText(settings.shard), stream ? ", streamed" : ""));
    settings.stream = stream;
    if (stream) settings.max_staleness = 0;
    ExpectSameRun(
        settings, 4, 3,
        [&](int64_t k) {
          // One group for four ranks, and one whose tokens are all masked.
          std::vector<Group> batch = UnequalBatch(80 + k, k, 2);
          for (Trajectory& t : batch[1].members) std::fill(t.mask.begin(), t.mask.end(), 0);
          return batch;
        },
        1e-4);
  }
}

TEST_F(RanksTest, T19StreamedGroupsAreSharedAsTheyCome) {
  for (const Shard shard : kShards) {
    SCOPED_TRACE(ShardText(shard));
    Settings settings = BaseSettings();
    settings.max_staleness = 0;
    settings.shard = shard;
    ASSERT_TRUE(Streams(settings));
    const std::unique_ptr<Trainer> alone = Make(settings);
    RankGroup group(3, model_.config, settings);
    Load(*group, settings);
    for (int64_t k = 0; k < 3; ++k) {
      for (Group& g : UnequalBatch(90 + k, k, 7)) {
        ASSERT_TRUE(alone->Add(k, {g}).ok());
        ASSERT_TRUE(group->Add(k, {g}).ok());
      }
      EXPECT_NEAR(alone->Finish(k)->loss, group->Finish(k)->loss, 1e-5);
    }
    EXPECT_LE(MaxDifference(*alone->Weights(), *group->Weights()), 1e-4);
  }
}

// A step with the gradients of a KL apart, whose ranks have unequal numbers of micro-batches.
TEST_F(RanksTest, T19TermsWithFactorsOfTheirOwnAreSharedToo) {
  for (const Shard shard : kShards) {
    SCOPED_TRACE(ShardText(shard));
    Settings settings = BaseSettings();
    settings.max_staleness = 0;
    settings.algorithm.loss.kl = 0.1;
    settings.algorithm.loss.entropy = 0.01;
    settings.reference = true;
    settings.micro_batch_tokens = 1;  // Each answer is a micro-batch.
    settings.optimizer.eps = 1e-3;
    settings.shard = shard;
    ASSERT_TRUE(Streams(settings));
    ExpectSameRun(settings, 3, 3, [](int64_t k) { return UnequalBatch(50 + k, k, 7); }, 1e-4);
  }
}

// The passes that score with the average come before those of the step. A rank with few of them
// must not begin its step while the others are still at theirs.
TEST_F(RanksTest, T19RanksWithUnequalNumbersOfProximalPassesBeginTheirStepTogether) {
  for (const Shard shard : kShards) {
    SCOPED_TRACE(ShardText(shard));
    Settings settings = BaseSettings();
    settings.algorithm.loss.prox = "ewma";
    settings.micro_batch_tokens = 1;  // Each answer is a micro-batch.
    settings.optimizer.eps = 1e-3;
    settings.shard = shard;
    // Two groups of 2 and 3 answers for two ranks.
    ExpectSameRun(settings, 2, 3, [](int64_t k) { return UnequalBatch(30 + k, k, 2); }, 1e-4);
    ExpectSameRun(settings, 3, 3, [](int64_t k) { return UnequalBatch(35 + k, k, 7); }, 1e-4);
  }
}

TEST_F(RanksTest, PairsAndDemonstrationsAreSharedToo) {
  for (size_t i = 0; i < std::size(kShards); ++i) {
    const int world = i % 2 == 0 ? 2 : 4;
    SCOPED_TRACE(absl::StrCat(world, " ranks, ", ShardText(kShards[i])));
    Settings dpo = DpoSettings();
    dpo.micro_batch_tokens = 1;  // The two answers of a pair are apart.
    dpo.shard = kShards[i];
    ExpectSameRun(dpo, world, 3, [](int64_t k) { return Pairs(5 + k); }, 1e-4);
    Settings sft;
    sft.kind = Settings::Kind::kSft;
    sft.optimizer.lr = 1e-3;
    sft.shard = kShards[i];
    ExpectSameRun(
        sft, world, 3,
        [](int64_t k) {
          std::vector<Group> rows = RandomBatch(5 + k, 9);
          for (Group& row : rows) {
            row.members.resize(1);
            row.members[0].logprobs.clear();
            row.members[0].versions.clear();
          }
          return rows;
        },
        1e-4);
  }
}

class ExpertRanksTest : public RanksTest, public testing::WithParamInterface<Shard> {
 protected:
  ExpertRanksTest() : RanksTest(TinyExpertsDir(kVocab)) {}
};
INSTANTIATE_TEST_SUITE_P(Of, ExpertRanksTest, testing::ValuesIn(kShards), [](const auto& info) {
  return absl::StrReplaceAll(ShardText(info.param), {{" ", "_"}});
});

// Half of the batches have recorded experts.
std::vector<Group> ExpertBatch(int64_t k, int groups) {
  std::vector<Group> batch = UnequalBatch(60 + k, k, groups);
  return k % 2 == 0 ? WithRouting(std::move(batch), 5 + k) : batch;
}

TEST_P(ExpertRanksTest, T19SixStepsWithEachNumberOfRanksEndAtTheSameWeights) {
  for (const int world : {2, 3}) {
    SCOPED_TRACE(absl::StrCat(world, " ranks"));
    Settings settings = BaseSettings();
    settings.optimizer.lr = 1e-4;
    settings.shard = GetParam();
    ExpectSameRun(settings, world, 6, [](int64_t k) { return ExpertBatch(k, 5); }, 1e-6);
  }
}

TEST_P(ExpertRanksTest, T19TheBalanceOfExpertsIsThatOfTheWholeBatch) {
  for (const int world : {2, 3}) {
    const bool apart = world == 3;
    SCOPED_TRACE(absl::StrCat(world, " ranks"));
    Settings settings = BaseSettings();
    settings.optimizer.lr = 1e-4;
    settings.algorithm.loss.router_balance = 0.5;
    settings.algorithm.loss.entropy = 0;
    settings.shard = GetParam();
    settings.micro_batch_tokens = 20;  // The ranks have unequal numbers of micro-batches.
    settings.recompute = apart ? Recompute::kNone : Recompute::kLayer;
    // The gradients of the balance are kept apart from those of the policy.
    settings.algorithm.loss.tis_normalize = apart;
    if (apart) settings.algorithm.loss.tis = 2;
    ASSERT_EQ(Validate(settings), absl::OkStatus());
    ExpectSameRun(settings, world, 3, [](int64_t k) { return ExpertBatch(k, 5); }, 1e-6);
  }
}

TEST_P(ExpertRanksTest, T19TheBalanceOfExpertsTakesARankWithoutWork) {
  Settings settings = BaseSettings();
  settings.optimizer.lr = 1e-4;
  settings.algorithm.loss.router_balance = 0.5;
  settings.minibatches = 2;
  settings.shard = GetParam();
  // An update has one or two groups for three ranks.
  ExpectSameRun(settings, 3, 2, [](int64_t k) { return ExpertBatch(k, 3); }, 1e-6);
  settings.kind = Settings::Kind::kSft;
  ExpectSameRun(
      settings, 3, 2, [](int64_t k) { return AsDemonstrations(ExpertBatch(k, 3)); }, 1e-6);
}

TEST_F(RanksTest, LowRankFactorsAndAveragesAreSharedToo) {
  for (const Shard shard : kShards) {
    SCOPED_TRACE(ShardText(shard));
    Settings lora = BaseSettings();
    lora.lora = {.rank = 2, .alpha = 4};
    lora.shard = shard;
    if (Validate(lora).ok())
      ExpectSameRun(lora, 3, 3, [](int64_t k) { return RandomBatch(11 + k, 6, k); }, 1e-4);
    Settings ewma = BaseSettings();
    ewma.algorithm.loss.prox = "ewma";
    ewma.minibatches = 2;
    ewma.shard = shard;
    ExpectSameRun(ewma, 3, 3, [](int64_t k) { return RandomBatch(11 + k, 6, k); }, 1e-4);
  }
}

// Each rank keeps the weights of older versions itself.
TEST_F(RanksTest, T19OlderVersionsScoreTheirOwnTokensOnEachRank) {
  for (const Shard shard : kShards) {
    SCOPED_TRACE(ShardText(shard));
    Settings exact = BaseSettings();
    exact.algorithm.loss.prox = "exact";
    exact.minibatches = 2;
    exact.shard = shard;
    if (!Validate(exact).ok()) continue;
    ExpectSameRun(
        exact, 3, 4,
        [](int64_t k) {
          std::vector<Group> batch = RandomBatch(11 + k, 3, k);
          for (Group& old : RandomBatch(31 + k, 3, std::max<int64_t>(0, k - 2)))
            batch.push_back(std::move(old));
          return batch;
        },
        1e-4);
  }
}

// Where parameters are kept changes no bit of what is computed from them.
TEST_F(RanksTest, T19ParametersInPartsGiveTheBitsOfWholeOnes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int world : {2, 3}) {
      Settings settings = BaseSettings();
      settings.dtype = dtype;
      settings.algorithm.loss.kl = 0.1;
      settings.reference = true;
      settings.micro_batch_tokens = 12;
      settings.minibatches = 2;
      std::vector<TensorSet> weights, moments;
      for (const Shard shard : {Shard::kGradients, Shard::kParameters}) {
        settings.shard = shard;
        settings.recompute = shard == Shard::kGradients ? Recompute::kNone : Recompute::kLayer;
        RankGroup group(world, model_.config, settings);
        Load(*group, settings);
        for (int64_t k = 0; k < 3; ++k) Run(*group, k, UnequalBatch(70 + k, k, 6));
        weights.push_back(*group->Weights());
        EXPECT_TRUE(SameBits(*ReadAll(*group->TakeSnapshot()->model), weights.back()));
        moments.push_back(MomentsOf(*group));
      }
      EXPECT_TRUE(SameBits(weights[0], weights[1]));
      EXPECT_TRUE(SameBits(moments[0], moments[1]));
    }
  }
}

// One token of the vocabulary is broken in the reference, and one answer has it, so the sums of one
// rank alone are not finite.
TEST_P(ShardedRanksTest, T27OneRankThatSeesANumberThatIsNotFiniteMakesAllSkip) {
  Settings settings = BaseSettings();
  settings.shard = GetParam();
  settings.algorithm.loss.kl = 0.1;
  settings.reference = true;
  const ModelDir untied = TinyModelDir(kVocab, /*tied=*/false);
  RankGroup group(3, untied.config, settings);
  ASSERT_TRUE(group->Load(*InitWeights(untied.config, 3)).ok());
  TensorSet broken = *InitWeights(untied.config, 4);
  const int64_t width = untied.config.hidden_size;
  broken.as<float>(static_cast<size_t>(broken.Find("model.embed_tokens.weight")))[15 * width] =
      std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(group->SetReference(broken).ok());

  const auto batch = [](int64_t k, bool with_broken) {
    std::vector<Group> groups = RandomBatch(10 + k, 6, k);
    for (Group& each : groups) {
      for (Trajectory& t : each.members) {
        for (int32_t& token : t.tokens) token = std::min(token, 14);
      }
    }
    // It is not the last token, so a later one is scored behind it.
    Trajectory& t = groups[0].members[0];
    if (with_broken) t.tokens[t.tokens.size() - 2] = 15;
    return groups;
  };
  EXPECT_EQ(Run(*group, 0, batch(0, false)).skipped, "");
  const TensorSet weights = *group->Weights(), moments = MomentsOf(*group);
  EXPECT_EQ(Run(*group, 1, batch(1, true)).skipped, "nonfinite_logprob");
  EXPECT_TRUE(SameBits(*group->Weights(), weights));
  EXPECT_TRUE(SameBits(MomentsOf(*group), moments));
  EXPECT_EQ(Run(*group, 2, batch(2, false)).skipped, "");
  const TensorSet last = *group->Weights();
  group.Stop();
  for (const int rank : {1, 2}) {
    EXPECT_EQ(group.of_rank(rank).updates(), 2);
    EXPECT_EQ(group.of_rank(rank).skips_in_a_row(), 0);
    if (settings.shard != Shard::kParameters) {
      EXPECT_TRUE(SameBits(*group.of_rank(rank).Weights(), last));
    }
  }
}

// Wherever in a step a rank is lost, the others hear of it and end.
TEST_P(ShardedRanksTest, ARankThatLeavesInTheMiddleOfAStepEndsTheOthers) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    SplitMix64 random(seed);
    Settings settings = BaseSettings();
    settings.shard = GetParam();
    settings.micro_batch_tokens = 8;
    RankGroup group(3, model_.config, settings);
    Load(*group, settings);
    std::thread leave([&group, turns = random.Below(2000)] {
      for (uint64_t i = 0; i < turns; ++i) std::this_thread::yield();
      group.Leave(2);
    });
    absl::Status status;
    for (int64_t k = 0; status.ok() && k < 1000; ++k) {
      status = group->Add(k, RandomBatch(seed + k, 6, k));
      if (status.ok()) status = group->Finish(k).status();
    }
    leave.join();
    EXPECT_EQ(ReasonOf(status), "RANK_LOST") << status;
    group.Stop();
    EXPECT_EQ(ReasonOf(group.end(1)), "RANK_LOST") << group.end(1);
    EXPECT_FALSE(group.end(2).ok());
  }
}

// The parts of the other ranks too are read as they were, in whatever order that happens.
TEST_P(ShardedRanksTest, ASnapshotIsReadAsItWasWhileTrainingGoesOn) {
  Settings settings = BaseSettings();
  settings.shard = GetParam();
  RankGroup group(3, model_.config, settings);
  Load(*group, settings);
  Run(*group, 0, RandomBatch(1));
  const TensorSet weights = *group->Weights(), moments = MomentsOf(*group);
  const Trainer::Sources early = *group->TakeSnapshot();
  Run(*group, 1, RandomBatch(2, 6, 1));
  const Trainer::Sources late = *group->TakeSnapshot();
  Run(*group, 2, RandomBatch(3, 6, 2));
  EXPECT_TRUE(SameBits(*ReadAll(*early.moments), moments));
  // A checkpoint may read the model twice.
  EXPECT_TRUE(SameBits(*ReadAll(*early.model), weights));
  EXPECT_TRUE(SameBits(*ReadAll(*early.model), weights));
  EXPECT_FALSE(SameBits(*ReadAll(*late.moments), moments));
  // Each moment is read in parts of any size.
  const Trainer::Sources parts = *group->TakeSnapshot();
  const TensorSet now = MomentsOf(*group);
  for (size_t i = 0; i < now.size(); ++i) {
    const auto expected = now.as<float>(i);
    for (size_t first = 0; first < expected.size(); first += 37) {
      std::vector<float> part(std::min<size_t>(37, expected.size() - first));
      ASSERT_TRUE(
          parts.moments
              ->Read(i, static_cast<int64_t>(first), static_cast<int64_t>(part.size()), part.data())
              .ok());
      EXPECT_TRUE(std::equal(part.begin(), part.end(), expected.begin() + first)) << i;
    }
  }
}

// Each rank writes its part where all see the folder, and rank 0 alone where they do not.
TEST_P(ShardedRanksTest, T24EachRankWritesItsPartOfACheckpoint) {
  std::map<std::string, DType> rounded;
  for (size_t i = 0; i < weights_.size(); ++i) rounded[weights_.spec(i).name] = DType::kBF16;
  for (const int world : {2, 3, 4}) {
    SCOPED_TRACE(absl::StrCat(world, " ranks"));
    Settings settings = BaseSettings();
    settings.algorithm.advantage.kind = "gae";
    settings.critic.lr = 1e-2;
    settings.shard = GetParam();
    const std::string dir = FreshDir();
    RankGroup group(world, model_.config, settings, nullptr, dir);
    Load(*group, settings);
    Run(*group, 0, RandomBatch(20, 6));
    int together = 0, alone = 0;
    const Checkpoint parts = WriteAndRead(*group, rounded, dir, &together),
                     whole = WriteAndRead(*group, rounded, FreshDir(), &alone);
    EXPECT_EQ(together, GetParam() == Shard::kNone ? 1 : world);
    EXPECT_EQ(alone, 1);
    EXPECT_EQ(PathExists(parts.path + "/masters.parts.json"), GetParam() == Shard::kParameters);
    for (const Checkpoint* found : {&parts, &whole}) {
      EXPECT_TRUE(SameBits(found->model, *group->Weights()));
      EXPECT_TRUE(SameBits(*ReadAll(*found->optimizer), MomentsOf(*group)));
      EXPECT_TRUE(SameBits(*ReadAll(*found->critic), CriticOf(*group)));
      EXPECT_TRUE(SameBits(*ReadAll(*found->critic_moments), CriticMomentsOf(*group)));
    }
  }
}

TEST_P(ShardedRanksTest, T24ACheckpointOfOneWorldGoesOnInAnother) {
  Settings settings = BaseSettings();
  settings.shard = GetParam();
  const std::string dir = FreshDir();
  RankGroup whole(2, model_.config, settings, nullptr, dir);
  Load(*whole, settings);
  for (int64_t k = 0; k < 2; ++k) Run(*whole, k, RandomBatch(20 + k, 6, k));
  const Checkpoint found = WriteAndRead(*whole, {}, dir);
  for (int64_t k = 2; k < 4; ++k) Run(*whole, k, RandomBatch(20 + k, 6, k));

  for (const Shard shard : kShards) {
    for (const int world : {1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat(world, " ranks, ", ShardText(shard)));
      settings.shard = shard;
      RankGroup group(world, model_.config, settings);
      ASSERT_TRUE(group
                      ->Restore(found.model, *found.optimizer, found.state.updates,
                                found.state.skips_in_a_row)
                      .ok());
      for (int64_t k = 2; k < 4; ++k) Run(*group, k, RandomBatch(20 + k, 6, k));
      EXPECT_EQ(group->updates(), whole->updates());
      if (world == 2 && shard == GetParam()) {
        EXPECT_TRUE(SameBits(*group->Weights(), *whole->Weights()));
        EXPECT_TRUE(SameBits(MomentsOf(*group), MomentsOf(*whole)));
      } else {
        EXPECT_LE(MaxDifference(*group->Weights(), *whole->Weights()), 1e-4);
      }
    }
  }
}

TEST_F(RanksTest, T24ACriticGoesOnInAnotherWorld) {
  for (const Shard shard : kShards) {
    Settings settings = BaseSettings();
    settings.algorithm.advantage.kind = "gae";
    settings.critic.lr = 1e-2;
    settings.shard = shard;
    RankGroup whole(2, model_.config, settings);
    Load(*whole, settings);
    for (int64_t k = 0; k < 2; ++k) Run(*whole, k, RandomBatch(20 + k, 6, k));
    const Checkpoint found = WriteAndRead(*whole, {});
    for (int64_t k = 2; k < 4; ++k) Run(*whole, k, RandomBatch(20 + k, 6, k));
    const TensorSet critic = CriticOf(*whole), moments = CriticMomentsOf(*whole);

    for (const int world : {1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat(world, " ranks, ", ShardText(shard)));
      RankGroup group(world, model_.config, settings);
      GoOnFrom(found, *group);
      for (int64_t k = 2; k < 4; ++k) Run(*group, k, RandomBatch(20 + k, 6, k));
      EXPECT_EQ(group->critic_updates(), 4);
      if (world == 2) {
        EXPECT_TRUE(SameBits(CriticOf(*group), critic));
        EXPECT_TRUE(SameBits(CriticMomentsOf(*group), moments));
        EXPECT_TRUE(SameBits(*group->Weights(), *whole->Weights()));
      } else {
        EXPECT_LE(MaxDifference(CriticOf(*group), critic), 1e-4);
        EXPECT_LE(MaxDifference(*group->Weights(), *whole->Weights()), 1e-4);
      }
    }
  }
}

TEST_F(RanksTest, WeightsThatHaveBecomeDifferentAreNamed) {
  const auto settings_of = [](int rank) {
    Settings settings = BaseSettings();
    if (rank == 1) settings.optimizer.lr *= 1.001;
    return settings;
  };
  RankGroup group(2, model_.config, settings_of);
  Load(*group, settings_of(0));
  absl::Status status;
  int64_t k = 0;
  for (; status.ok() && k < 200; ++k) {
    ASSERT_TRUE(group->Add(k, RandomBatch(k, 2, k)).ok());
    status = group->Finish(k).status();
  }
  EXPECT_EQ(k, 50);
  EXPECT_EQ(ReasonOf(status), "RANKS_DIFFER") << status;
  EXPECT_THAT(std::string(status.message()),
              ::testing::HasSubstr("the weight model.embed_tokens.weight of rank 1"));
  group.Stop();
  EXPECT_EQ(ReasonOf(group.end(1)), "RANKS_DIFFER") << group.end(1);
}

// Of parameters in parts there is one copy, which no rank can make different. What the ranks gather
// is compared, and is the same.
TEST_F(RanksTest, PartsThatRanksUpdateEachInItsWayAreNoDifference) {
  const auto settings_of = [](int rank) {
    Settings settings = BaseSettings();
    settings.shard = Shard::kParameters;
    if (rank == 1) settings.optimizer.lr *= 1.001;
    return settings;
  };
  RankGroup group(2, model_.config, settings_of);
  Load(*group, settings_of(0));
  for (int64_t k = 0; k < 51; ++k) Run(*group, k, RandomBatch(k, 2, k));
  EXPECT_EQ(group->updates(), 51);
}

TEST_F(RanksTest, ABatchThatMustNotBeTrainedEndsAllRanks) {
  const Settings settings = BaseSettings();
  RankGroup group(2, model_.config, settings);
  Load(*group, settings);
  std::vector<Group> batch = RandomBatch(1);
  batch[3].members[0].mask[0] = 1;
  const absl::Status added = group->Add(0, batch);
  EXPECT_EQ((added.ok() ? group->Finish(0).status() : added).code(),
            absl::StatusCode::kInvalidArgument);
  group.Stop();
  EXPECT_EQ(group.end(1).code(), absl::StatusCode::kInvalidArgument) << group.end(1);
}

TEST(DealTest, GroupsStayWholeAndLoadsAreEven) {
  SplitMix64 random(5);
  for (int round = 0; round < 200; ++round) {
    const int world = 1 + static_cast<int>(random.Below(5));
    std::vector<Sequence> sequences;
    int64_t longest = 0, total = 0;
    for (uint32_t g = 0; g < random.Below(30); ++g) {
      int64_t tokens = 0;
      for (uint64_t i = 0; i <= random.Below(4); ++i) {
        Sequence& sequence = sequences.emplace_back();
        sequence.group = g;
        sequence.tokens.resize(1 + random.Below(50));
        tokens += static_cast<int64_t>(sequence.tokens.size());
      }
      longest = std::max(longest, tokens);
      total += tokens;
    }
    std::vector<int64_t> loads(world);
    const int64_t shared_above = round % 2 == 0 ? 0 : 40;
    const std::vector<int> ranks = DealSequences(sequences, shared_above, &loads);
    std::vector<int64_t> expected(world);
    for (size_t i = 0; i < sequences.size(); ++i) {
      const int64_t tokens = static_cast<int64_t>(sequences[i].tokens.size());
      if (shared_above == 0 || tokens <= shared_above) expected[ranks[i]] += tokens;
      if (i > 0 && sequences[i].group == sequences[i - 1].group) EXPECT_EQ(ranks[i], ranks[i - 1]);
    }
    EXPECT_EQ(loads, expected);
    // The bound of greedy scheduling.
    for (const int64_t load : loads) EXPECT_LE(load, total / world + longest);
  }
}

TEST(ExperienceCodecTest, GroupsComeBackAsTheyWere) {
  std::vector<Group> groups = RandomBatch(3);
  groups[1].pool = {0.5, 0.25};
  groups[2].members.clear();
  Trajectory& t = groups[0].members[0];
  t.routing = {1, 2, 3};
  t.masked = {{1, 2}, {4, 1}};
  t.kl = {0.5f};
  t.token_rewards = {{2, 0.25}, {4, -1}};
  t.truncated = true;
  for (Trajectory& member : groups[0].members) std::fill_n(member.logprobs.begin(), 2, 0.0f);
  const std::string bytes = EncodeGroups(groups);
  absl::StatusOr<std::vector<Group>> back = DecodeGroups(bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(EncodeGroups(*back), bytes);
  ASSERT_EQ(back->size(), groups.size());
  EXPECT_EQ((*back)[1].pool, groups[1].pool);
  const Trajectory& read = (*back)[0].members[0];
  EXPECT_EQ(read.tokens, t.tokens);
  EXPECT_EQ(read.mask, t.mask);
  EXPECT_EQ(read.logprobs, t.logprobs);
  EXPECT_EQ(read.versions, t.versions);
  EXPECT_EQ(read.routing, t.routing);
  EXPECT_EQ(read.masked, t.masked);
  EXPECT_EQ(read.kl, t.kl);
  EXPECT_EQ(read.turns, t.turns);
  EXPECT_EQ(read.token_rewards, t.token_rewards);
  EXPECT_EQ(read.reward, t.reward);
  EXPECT_TRUE(read.truncated);
}

TEST(ExperienceCodecTest, BytesThatWereCutAreRefused) {
  const std::string bytes = EncodeGroups(RandomBatch(3, 2));
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(DecodeGroups(absl::string_view(bytes).substr(0, n)).ok()) << n;
  }
  EXPECT_FALSE(DecodeGroups(bytes + "x").ok());
}

}  // namespace
}  // namespace sluice::trainer
