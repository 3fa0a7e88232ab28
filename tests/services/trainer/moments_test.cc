// AdamW's moments in bf16: snapshots, checkpoints, and several ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/services/trainer/rank_group.h"
#include "tests/services/trainer/trainer_fixture.h"

namespace sluice::trainer {
namespace {

using ::testing::HasSubstr;

Settings Bf16Moments(Shard shard = Shard::kNone) {
  Settings settings = BaseSettings();
  settings.optimizer.moments = DType::kBF16;
  settings.shard = shard;
  return settings;
}

class MomentsTest : public TrainerTest {
 protected:
  static void RunSteps(Trainer& trainer, int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k)
      Run(trainer, k, RandomBatch(static_cast<uint64_t>(20 + k), 6, k));
  }
};

TEST_F(MomentsTest, T24ARunGoesOnFromACheckpointBitForBit) {
  for (const bool critic : {false, true}) {
    Settings settings = Bf16Moments();
    if (critic) {
      settings.algorithm.advantage.kind = "gae";
      settings.algorithm.loss.kind = "ppo";
    }
    const auto whole = Make(settings), first = Make(settings), second = Make(settings);
    RunSteps(*whole, 0, 6);
    RunSteps(*first, 0, 3);
    const Checkpoint found = WriteAndRead(*first, {});
    for (const TensorSpec& spec : found.optimizer->specs()) EXPECT_EQ(spec.dtype, DType::kBF16);
    GoOnFrom(found, *second);
    RunSteps(*second, 3, 6);
    EXPECT_TRUE(SameBits(*second->Weights(), *whole->Weights()));
    EXPECT_TRUE(SameBits(MomentsOf(*second), MomentsOf(*whole)));
    if (critic) {
      EXPECT_TRUE(SameBits(CriticOf(*second), CriticOf(*whole)));
      EXPECT_TRUE(SameBits(CriticMomentsOf(*second), CriticMomentsOf(*whole)));
    }
  }
}

// Rank 0 gets the parts of the others in floats, of which each holds two moments.
TEST_F(MomentsTest, RanksShareThemOutAndACheckpointOfOneWorldGoesOnInAnother) {
  for (const Shard shard :
       {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kParameters}) {
    SCOPED_TRACE(static_cast<int>(shard));
    RankGroup whole(2, model_.config, Bf16Moments(shard));
    ASSERT_TRUE(whole->Load(weights_).ok());
    RunSteps(*whole, 0, 2);
    const Checkpoint found = WriteAndRead(*whole, {});
    const TensorSet moments = MomentsOf(*whole);
    RunSteps(*whole, 2, 4);
    for (const int world : {1, 2, 3}) {
      RankGroup group(world, model_.config, Bf16Moments(shard));
      GoOnFrom(found, *group);
      EXPECT_TRUE(SameBits(MomentsOf(*group), moments)) << world;
      RunSteps(*group, 2, 4);
      if (world == 2) {
        EXPECT_TRUE(SameBits(*group->Weights(), *whole->Weights()));
        EXPECT_TRUE(SameBits(MomentsOf(*group), MomentsOf(*whole)));
      } else {
        EXPECT_LE(MaxDifference(*group->Weights(), *whole->Weights()), 1e-3);
      }
    }
  }
}

TEST_F(MomentsTest, TheirSnapshotIsReadInPartsAsItWasWhileTrainingGoesOn) {
  for (const Shard shard : {Shard::kOptimizer, Shard::kGradients, Shard::kParameters}) {
    SCOPED_TRACE(static_cast<int>(shard));
    RankGroup group(3, model_.config, Bf16Moments(shard));
    ASSERT_TRUE(group->Load(weights_).ok());
    RunSteps(*group, 0, 1);
    const TensorSet moments = MomentsOf(*group);
    const Trainer::Sources parts = *group->TakeSnapshot();
    RunSteps(*group, 1, 2);
    EXPECT_FALSE(SameBits(MomentsOf(*group), moments));
    for (size_t i = 0; i < moments.size(); ++i) {
      const auto* const expected = reinterpret_cast<const uint16_t*>(moments.data(i));
      for (int64_t first = 0; first < moments.elements(i); first += 37) {
        std::vector<uint16_t> part(
            static_cast<size_t>(std::min<int64_t>(37, moments.elements(i) - first)));
        ASSERT_TRUE(
            parts.moments->Read(i, first, static_cast<int64_t>(part.size()), part.data()).ok());
        EXPECT_TRUE(std::equal(part.begin(), part.end(), expected + first)) << i << " " << first;
      }
    }
  }
}

TEST_F(MomentsTest, TheRunStaysNearThatWithMomentsInFp32) {
  const auto exact = Make(BaseSettings()), rounded = Make(Bf16Moments());
  RunSteps(*exact, 0, 30);
  RunSteps(*rounded, 0, 30);
  const TensorSet a = *exact->Weights(), b = *rounded->Weights();
  double squares = 0, moved = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (int64_t j = 0; j < a.elements(i); ++j) {
      const auto at = static_cast<size_t>(j);
      squares += std::pow(double{a.as<float>(i)[at]} - b.as<float>(i)[at], 2);
      moved += std::pow(double{a.as<float>(i)[at]} - weights_.as<float>(i)[at], 2);
    }
  }
  EXPECT_GT(squares, 0);
  EXPECT_LT(std::sqrt(squares / moved), 0.1) << "of the way that the weights have gone";
}

TEST_F(MomentsTest, ACheckpointWithMomentsOfAnotherTypeIsRefusedByName) {
  const auto exact = Make(BaseSettings()), rounded = Make(Bf16Moments());
  const Checkpoint found = WriteAndRead(*exact, {});
  const absl::Status status = rounded->Restore(found.model, *found.optimizer, 0, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the tensor m."));
}

}  // namespace
}  // namespace sluice::trainer
