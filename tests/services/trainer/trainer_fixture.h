#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/splitmix.h"
#include "common/models/train_model.h"
#include "services/trainer/core/checkpoint.h"
#include "services/trainer/core/trainer.h"
#include "tests/services/trainer/tiny_model.h"

namespace sluice::trainer {

inline constexpr int kVocab = 16;

// A group with one prompt of 2 tokens and answers of 1 to 6 tokens, sampled at `version`. The
// answer's first token is a turn, and the others are another one. The behavior log-probs are
// random, near ln(1 / kVocab). `multi_turn`: token 3 is not a sampled one.
inline Group RandomGroup(SplitMix64& random, int64_t version, int members = 4,
                         bool multi_turn = false) {
  Group group;
  for (uint8_t& byte : group.id.bytes) byte = static_cast<uint8_t>(random.Next());
  const int32_t prompt[2] = {static_cast<int32_t>(random.Below(kVocab)),
                             static_cast<int32_t>(random.Below(kVocab))};
  for (int m = 0; m < members; ++m) {
    Trajectory trajectory;
    trajectory.member = static_cast<uint32_t>(m);
    trajectory.attempt = 1;
    const size_t length = 3 + random.Below(6);
    for (size_t t = 0; t < length; ++t) {
      const bool sampled = t >= 2 && !(multi_turn && t == 3);
      trajectory.tokens.push_back(t < 2 ? prompt[t] : static_cast<int32_t>(random.Below(kVocab)));
      trajectory.mask.push_back(sampled);
      trajectory.logprobs.push_back(sampled ? static_cast<float>(-2.8 + 0.4 * random.Uniform())
                                            : std::nanf(""));
      trajectory.versions.push_back(sampled ? version : -1);
    }
    trajectory.reward = random.Uniform();
    const uint64_t split = multi_turn ? 4 : 3;  // The first token of the second turn.
    trajectory.turns = {{.first = 2, .count = 1, .seconds = 0.5 * (m + 1)}};
    if (length > split)
      trajectory.turns.push_back(
          {.first = split, .count = length - split, .seconds = static_cast<double>(length)});
    group.members.push_back(std::move(trajectory));
  }
  return group;
}

inline std::vector<Group> RandomBatch(uint64_t seed, int groups = 6, int64_t version = 0) {
  SplitMix64 random(seed);
  std::vector<Group> batch;
  for (int g = 0; g < groups; ++g) batch.push_back(RandomGroup(random, version, 4, g % 2 == 1));
  return batch;
}

// Gives the answers of a batch rewards of single tokens, some of them of tokens without training.
inline void RewardTokens(uint64_t seed, std::vector<Group>& batch) {
  SplitMix64 random(seed);
  for (Group& group : batch) {
    for (Trajectory& t : group.members) {
      for (size_t i = 2; i < t.tokens.size(); ++i) {
        if (random.Below(2) == 0) t.token_rewards.push_back({i, random.Uniform() - 0.5});
      }
    }
  }
}

// A trajectory as a batch of its own, in which its trained tokens are scored.
struct AloneBatch {
  PackedBatch packed;
  std::vector<int64_t> targets;
};
inline AloneBatch PackAlone(const Trajectory& trajectory) {
  AloneBatch batch;
  const auto& tokens = trajectory.tokens;
  batch.packed.tokens.assign(tokens.begin(), tokens.end());
  batch.packed.positions.resize(tokens.size());
  std::iota(batch.packed.positions.begin(), batch.packed.positions.end(), 0);
  batch.packed.cu_seqlens = {0, static_cast<int64_t>(tokens.size())};
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!trajectory.mask[i]) continue;
    batch.packed.score_rows.push_back(static_cast<int64_t>(i) - 1);
    batch.targets.push_back(tokens[i]);
  }
  return batch;
}

inline Settings BaseSettings() {
  Settings settings;
  settings.algorithm.loss.entropy = 0.05;
  settings.optimizer.lr = 1e-2;
  settings.max_staleness = 4;
  settings.group_size = 4;
  settings.max_response = 8;
  return settings;
}

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() : TrainerTest(TinyModelDir(kVocab)) {}
  explicit TrainerTest(ModelDir model) : model_(std::move(model)) {}

  std::unique_ptr<Trainer> Make(const Settings& settings) {
    absl::StatusOr<std::unique_ptr<Trainer>> trainer =
        Trainer::Create(settings, model_.config, Clock::Real(), nullptr, nullptr, &teacher_config_);
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    EXPECT_TRUE((*trainer)->Load(weights_).ok());
    if (settings.reference) {
      EXPECT_TRUE((*trainer)->SetReference(reference_).ok());
    }
    if (settings.teacher) {
      EXPECT_TRUE((*trainer)->SetTeacher(teacher_).ok());
    }
    return *std::move(trainer);
  }

  static StepResult Run(Trainer& trainer, int64_t k, std::vector<Group> batch) {
    EXPECT_TRUE(trainer.Add(k, std::move(batch)).ok());
    absl::StatusOr<StepResult> result = trainer.Finish(k);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(StepResult{});
  }

  // A checkpoint of the trainer, as its successor reads it. `types`: dtypes in model.safetensors.
  // `writers`, if not null, gets the number of ranks that have written it.
  Checkpoint WriteAndRead(Trainer& trainer, std::map<std::string, DType> types,
                          const std::string& dir = FreshDir(), int* writers = nullptr) {
    Trainer::Sources sources = *trainer.TakeSnapshot();
    CheckpointStore store(
        {.dir = dir, .job = "j", .source = model_, .model_types = std::move(types)});
    CheckpointContents contents{.model = std::move(sources.model),
                                .optimizer = std::move(sources.moments),
                                .critic = std::move(sources.critic),
                                .critic_moments = std::move(sources.critic_moments)};
    contents.state = {.job = "j",
                      .version = {1, 0},
                      .updates = trainer.updates(),
                      .skips_in_a_row = 0,
                      .seed = 1,
                      .critic_updates = trainer.critic_updates(),
                      .reward_kl = trainer.reward_kl()};
    contents.state.ledger_hash = std::string(32, '\0');  // No lineage: version 0.
    const absl::StatusOr<std::string> path = store.Write(std::move(contents));
    EXPECT_TRUE(path.ok()) << path.status();
    if (writers != nullptr) *writers = store.writers().ranks;
    return **store.ReadNewest(nullptr);
  }

  // Has a trainer go on from a checkpoint.
  static void GoOnFrom(const Checkpoint& found, Trainer& trainer) {
    ASSERT_EQ(trainer.Restore(
                  found.model, *found.optimizer, found.state.updates, found.state.skips_in_a_row,
                  {found.critic.get(), found.critic_moments.get(), found.state.critic_updates}),
              absl::OkStatus());
    ASSERT_EQ(trainer.SetRewardKl(found.state.reward_kl), absl::OkStatus());
  }

  static TensorSet MomentsOf(Trainer& trainer) {
    return *ReadAll(*trainer.TakeSnapshot()->moments);
  }

  static TensorSet CriticOf(Trainer& trainer) { return *ReadAll(*trainer.TakeSnapshot()->critic); }
  static TensorSet CriticMomentsOf(Trainer& trainer) {
    return *ReadAll(*trainer.TakeSnapshot()->critic_moments);
  }

  static double MaxDifference(const TensorSet& a, const TensorSet& b) {
    double worst = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const auto x = a.as<float>(i), y = b.as<float>(i);
      for (size_t j = 0; j < x.size(); ++j) worst = std::max(worst, std::abs(double{x[j]} - y[j]));
    }
    return worst;
  }

  static bool SameBits(const TensorSet& a, const TensorSet& b) {
    return a.layout_id() == b.layout_id() &&
           std::equal(a.buffer().begin(), a.buffer().end(), b.buffer().begin());
  }

  const ModelDir model_;
  const TensorSet weights_ = *InitWeights(model_.config, 3);
  const TensorSet reference_ = *InitWeights(model_.config, 4);
  const ModelConfig teacher_config_ = TeacherConfig();
  const TensorSet teacher_ = *InitWeights(teacher_config_, 5);

 private:
  // A teacher is wider than its student.
  ModelConfig TeacherConfig() const {
    ModelConfig config = model_.config;
    config.hidden_size *= 2;
    return config;
  }
};

}  // namespace sluice::trainer
