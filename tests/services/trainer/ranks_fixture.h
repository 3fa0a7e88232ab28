#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/services/trainer/pairs_fixture.h"
#include "tests/services/trainer/rank_group.h"

namespace sluice::trainer {

// Compares training with several ranks with the same training with one.
class RanksTest : public TrainerTest {
 protected:
  using TrainerTest::TrainerTest;

  void Load(Trainer& trainer, const Settings& settings) {
    ASSERT_TRUE(trainer.Load(weights_).ok());
    if (KeepsInitialWeights(settings)) {
      ASSERT_TRUE(trainer.SetReference(settings.lora.rank > 0 ? weights_ : reference_).ok());
    }
    if (settings.teacher) {
      ASSERT_TRUE(trainer.SetTeacher(teacher_).ok());
    }
  }

  // Trains `steps` batches with `world` ranks and with one, and compares.
  void ExpectSameRun(const Settings& settings, int world, int64_t steps,
                     const std::function<std::vector<Group>(int64_t k)>& batch, double tolerance) {
    absl::StatusOr<std::unique_ptr<Trainer>> alone =
        Trainer::Create(settings, model_.config, Clock::Real(), nullptr, nullptr, &teacher_config_);
    ASSERT_TRUE(alone.ok()) << alone.status();
    Load(**alone, settings);
    RankGroup group(world, model_.config, settings, &teacher_config_);
    Load(*group, settings);
    for (int64_t k = 0; k < steps; ++k) {
      const StepResult expected = Run(**alone, k, batch(k));
      StepResult result = Run(*group, k, batch(k));
      EXPECT_EQ(result.skipped, expected.skipped);
      EXPECT_EQ(result.tokens, expected.tokens);
      EXPECT_EQ(result.staleness, expected.staleness);
      EXPECT_NEAR(result.loss, expected.loss, 1e-4) << k;
      EXPECT_NEAR(result.grad_norm, expected.grad_norm, 1e-3 * expected.grad_norm + 1e-9) << k;
      EXPECT_NEAR(result.lr, expected.lr, 1e-4 * expected.lr) << k;
      // A prompt that the answers of a group share is computed once for each micro-batch, and how
      // these are divided depends on the ranks.
      EXPECT_NEAR(result.flops, expected.flops, settings.context ? 0.05 * expected.flops : 1e-3);
      result.metrics.erase("context_passes");
      ASSERT_EQ(result.metrics.size(), expected.metrics.size());
      for (const auto& [name, value] : expected.metrics)
        EXPECT_NEAR(result.metrics.at(name), value, 1e-3 * (1 + std::abs(value))) << name;
    }
    const TensorSet moments = MomentsOf(*group);
    EXPECT_LE(MaxDifference(moments, MomentsOf(**alone)), 1e-3);
    TensorSet critic, critic_moments;
    if (HasCritic(settings)) critic = CriticOf(*group), critic_moments = CriticMomentsOf(*group);
    const TensorSet weights = *group->Weights();
    EXPECT_LE(MaxDifference(weights, *(*alone)->Weights()), tolerance);
    group.Stop();
    if (HasCritic(settings)) {
      EXPECT_LE(MaxDifference(critic, CriticOf(**alone)), tolerance);
      EXPECT_LE(MaxDifference(critic_moments, CriticMomentsOf(**alone)), 1e-3);
    }
    for (int rank = 1; rank < world; ++rank) {
      EXPECT_EQ(ReasonOf(group.end(rank)), "RANK_LOST") << group.end(rank);
      if (settings.shard != Shard::kParameters) {
        EXPECT_TRUE(SameBits(*group.of_rank(rank).Weights(), weights)) << rank;
      }
      EXPECT_EQ(group.of_rank(rank).updates(), group->updates());
      EXPECT_EQ(group.of_rank(rank).critic_updates(), group->critic_updates());
      EXPECT_EQ(group.of_rank(rank).reward_kl(), group->reward_kl());
    }
  }
};

inline constexpr Shard kShards[] = {Shard::kNone, Shard::kOptimizer, Shard::kGradients,
                                    Shard::kParameters};

inline std::string ShardText(Shard shard) {
  return absl::StrCat("shard ",
                      std::vector{"none", "optimizer", "gradients", "parameters"}[size_t(shard)]);
}

// Groups of unequal sizes and lengths, so that the ranks' shares differ.
inline std::vector<Group> UnequalBatch(uint64_t seed, int64_t version, int groups) {
  SplitMix64 random(seed);
  std::vector<Group> batch;
  for (int g = 0; g < groups; ++g) batch.push_back(RandomGroup(random, version, 2 + g % 3, g % 2));
  return batch;
}

}  // namespace sluice::trainer
