// Low-rank training.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/match.h"
#include "common/models/train_model.h"
#include "services/trainer/core/memory_plan.h"
#include "tests/services/trainer/trainer_fixture.h"

namespace sluice::trainer {
namespace {

constexpr int kRank = 4;

Settings LoraTestSettings() {
  Settings settings;
  settings.kind = Settings::Kind::kSft;
  settings.optimizer.lr = 1e-2;
  settings.optimizer.weight_decay = 0;
  settings.optimizer.max_grad_norm = 0;
  settings.lora = {.rank = kRank, .alpha = 8, .seed = 5};
  return settings;
}

// Groups as rows of supervised data give them.
std::vector<Group> Rows(uint64_t seed) {
  std::vector<Group> rows = RandomBatch(seed, 4);
  for (Group& row : rows) {
    row.members.resize(1);
    row.members[0].logprobs.clear();
    row.members[0].versions.clear();
  }
  return rows;
}

class LoraTest : public TrainerTest {
 protected:
  std::unique_ptr<Trainer> MakeLora(const Settings& settings) {
    std::unique_ptr<Trainer> trainer = *Trainer::Create(settings, model_.config, Clock::Real());
    EXPECT_TRUE(trainer->SetReference(weights_).ok());
    EXPECT_TRUE(trainer->Load(weights_).ok());
    return trainer;
  }

  static at::Tensor TensorOf(const TensorSet& set, const std::string& name) {
    const size_t i = set.Find(name);
    const auto values = set.as<float>(i);
    return at::tensor(std::vector<float>(values.begin(), values.end()))
        .view(at::IntArrayRef(set.spec(i).shape));
  }
  // B A of a weight, from the optimizer's state.
  static at::Tensor Product(const TensorSet& state, const std::string& weight) {
    const std::string name = "p." + weight.substr(0, weight.size() - 7);
    return TensorOf(state, name + ".lora_B").mm(TensorOf(state, name + ".lora_A"));
  }
};

TEST_F(LoraTest, AtTheStartTheWeightsAreThoseOfTheModel) {
  const auto trainer = MakeLora(LoraTestSettings());
  EXPECT_TRUE(SameBits(*trainer->Weights(), weights_));
  const TensorSet state = MomentsOf(*trainer);
  const at::Tensor a = TensorOf(state, "p.model.layers.0.self_attn.q_proj.lora_A");
  EXPECT_EQ(a.size(0), kRank);
  EXPECT_LE(a.abs().max().item<double>(), 1 / std::sqrt(16.0)) << "hidden size 16";
  EXPECT_GT(a.abs().max().item<double>(), 0.1);
  EXPECT_EQ(Product(state, "model.layers.0.self_attn.q_proj.weight").abs().max().item<double>(), 0);
}

TEST_F(LoraTest, TheGradientOfTheFirstStepIsThatOfTheFactors) {
  const auto trainer = MakeLora(LoraTestSettings());
  const TensorSet state = MomentsOf(*trainer);
  const std::vector<Group> rows = Rows(3);
  const StepResult result = Run(*trainer, 0, rows);

  // The same loss with whole matrices, by torch.
  const auto slow = *TrainModel::Create(model_.config, DType::kF32);
  ASSERT_TRUE(slow->Load(weights_).ok());
  at::Tensor loss = at::zeros({});
  int64_t tokens = 0;
  for (const Group& row : rows) {
    const AloneBatch alone = PackAlone(row.members[0]);
    const at::Tensor z = at::log_softmax(*slow->Logits(alone.packed), -1);
    loss = loss - z.gather(1, at::tensor(alone.targets).unsqueeze(1)).sum();
    tokens += static_cast<int64_t>(alone.targets.size());
  }
  ASSERT_TRUE(Backward(loss / static_cast<double>(tokens)).ok());

  // B is 0, so the gradient of A is too, and that of B is scale times dW A^T.
  double squares = 0;
  int matrices = 0;
  for (const TrainModel::Parameter& p : slow->parameters()) {
    if (!IsLoraTarget(LoraTestSettings().lora, p.name)) continue;
    ++matrices;
    const at::Tensor a = TensorOf(state, "p." + p.name.substr(0, p.name.size() - 7) + ".lora_A");
    const at::Tensor gradient = 8.0 / kRank * p.tensor.grad().mm(a.t());
    squares += gradient.pow(2).sum().item<double>();
  }
  EXPECT_EQ(matrices, 7);
  EXPECT_NEAR(result.grad_norm, std::sqrt(squares), 1e-5 * std::sqrt(squares));
  EXPECT_NEAR(result.loss, loss.item<double>() / static_cast<double>(tokens), 1e-5);
}

TEST_F(LoraTest, TheWeightsAreTheFrozenOnesAndTheProductOfTheFactors) {
  Settings settings = LoraTestSettings();
  settings.lora.targets = {"v_proj", "up_proj"};
  const auto trainer = MakeLora(settings);
  for (int64_t k = 0; k < 5; ++k) Run(*trainer, k, Rows(3));

  const TensorSet weights = *trainer->Weights(), state = MomentsOf(*trainer);
  for (size_t i = 0; i < weights.size(); ++i) {
    const std::string& name = weights.spec(i).name;
    const at::Tensor now = TensorOf(weights, name), frozen = TensorOf(weights_, name);
    if (absl::StrContains(name, "v_proj.weight") || absl::StrContains(name, "up_proj.weight")) {
      const at::Tensor want = frozen + 8.0 / kRank * Product(state, name);
      EXPECT_LE((now - want).abs().max().item<double>(), 1e-6) << name;
      EXPECT_GT((now - frozen).abs().max().item<double>(), 1e-3) << name;
    } else {
      EXPECT_TRUE(now.equal(frozen)) << name;
    }
  }
}

TEST_F(LoraTest, ItLearns) {
  const auto trainer = MakeLora(LoraTestSettings());
  const StepResult first = Run(*trainer, 0, Rows(3));
  StepResult last;
  for (int64_t k = 1; k < 60; ++k) last = Run(*trainer, k, Rows(3));
  EXPECT_LT(last.loss, first.loss / 2);
}

TEST_F(LoraTest, T24ARunThatGoesOnFromACheckpointHasTheSameBits) {
  const auto whole = MakeLora(LoraTestSettings());
  for (int64_t k = 0; k < 3; ++k) Run(*whole, k, Rows(static_cast<uint64_t>(k)));
  const Checkpoint checkpoint = WriteAndRead(*whole, {});

  const auto resumed = MakeLora(LoraTestSettings());
  ASSERT_TRUE(
      resumed->Restore(checkpoint.model, *checkpoint.optimizer, checkpoint.state.updates, 0).ok());
  EXPECT_TRUE(SameBits(*resumed->Weights(), *whole->Weights()));
  for (int64_t k = 3; k < 6; ++k) {
    Run(*whole, k, Rows(static_cast<uint64_t>(k)));
    Run(*resumed, k, Rows(static_cast<uint64_t>(k)));
  }
  EXPECT_TRUE(SameBits(*resumed->Weights(), *whole->Weights()));
  EXPECT_TRUE(SameBits(MomentsOf(*resumed), MomentsOf(*whole)));
}

TEST_F(LoraTest, ACheckpointOfAnotherInitialModelIsRefused) {
  const auto trainer = MakeLora(LoraTestSettings());
  Run(*trainer, 0, Rows(1));
  const Checkpoint checkpoint = WriteAndRead(*trainer, {});

  const auto other = MakeLora(LoraTestSettings());
  ASSERT_TRUE(other->SetReference(reference_).ok());
  const absl::Status status = other->Restore(checkpoint.model, *checkpoint.optimizer, 1, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "model.path are no longer those")) << status;
}

TEST_F(LoraTest, ASnapshotKeepsWeightsAndFactorsWhileTrainingGoesOn) {
  const auto trainer = MakeLora(LoraTestSettings());
  Run(*trainer, 0, Rows(1));
  const TensorSet weights = *trainer->Weights(), state = MomentsOf(*trainer);
  const Trainer::Sources sources = *trainer->TakeSnapshot();
  for (int64_t k = 1; k < 4; ++k) Run(*trainer, k, Rows(2));
  EXPECT_TRUE(SameBits(*ReadAll(*sources.model), weights));
  EXPECT_TRUE(SameBits(*ReadAll(*sources.moments), state));
}

TEST_F(LoraTest, TheFrozenWeightsAreTheReferencePolicy) {
  Settings settings = BaseSettings();
  settings.lora = {.rank = kRank, .alpha = 8};
  settings.reference = true;
  settings.algorithm.loss.kl = 0.1;
  const auto trainer = MakeLora(settings);
  const StepResult first = Run(*trainer, 0, RandomBatch(3));
  EXPECT_NEAR(first.metrics.at("kl"), 0, 1e-9);
  const StepResult second = Run(*trainer, 1, RandomBatch(3, 6, 1));
  EXPECT_GT(second.metrics.at("kl"), 0);
}

TEST_F(LoraTest, WhatCannotBeTrainedWithFactorsIsRefused) {
  Settings settings = LoraTestSettings();
  settings.lora.targets = {"embed_tokens"};
  EXPECT_FALSE(Validate(settings).ok());
  settings = LoraTestSettings();
  settings.lora.alpha = 0;
  EXPECT_FALSE(Validate(settings).ok());
  settings = BaseSettings();
  settings.lora.rank = 4;
  ASSERT_TRUE(Validate(settings).ok());
  settings.algorithm.advantage.kind = "min_variance";
  EXPECT_FALSE(Validate(settings).ok());
  settings = BaseSettings();
  settings.lora.rank = 4;
  settings.algorithm.loss.prox = "ewma";
  EXPECT_FALSE(Validate(settings).ok());
}

TEST_F(LoraTest, ThePlanHasTheFrozenWeightsAndNoMomentsOfTheModel) {
  MemoryPlanInput whole{.config = model_.config, .reference = true};
  MemoryPlanInput lora = whole;
  lora.lora.rank = 1;
  const uint64_t parameters = static_cast<uint64_t>(model_.config.NumParameters());
  // Of rank 1 a factor pair has in + out numbers, of 16 bytes each: q, k, v, o, gate, up, down.
  const uint64_t factors = (16 + 16) + 2 * (16 + 8) + (16 + 16) + 2 * (16 + 24) + (24 + 16);
  EXPECT_EQ(PlanMemory(whole).total() - PlanMemory(lora).total(), 8 * parameters - 16 * factors);
}

}  // namespace
}  // namespace sluice::trainer
