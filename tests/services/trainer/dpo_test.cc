// The step of kind dpo, against the same step written pair by pair with torch.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "common/models/train_model.h"
#include "tests/services/trainer/pairs_fixture.h"

namespace sluice::trainer {
namespace {

class DpoTest : public TrainerTest {
 protected:
  DpoTest()
      : policy_(*TrainModel::Create(model_.config, DType::kF32)),
        slow_reference_(*TrainModel::Create(model_.config, DType::kF32)) {
    EXPECT_TRUE(policy_->Load(weights_).ok() && slow_reference_->Load(reference_).ok());
  }

  // The sum of the log-probs of an answer, in fp64 with gradient.
  static at::Tensor SumOf(TrainModel& model, const Trajectory& answer) {
    const AloneBatch alone = PackAlone(answer);
    const at::Tensor z = at::log_softmax(model.Logits(alone.packed)->to(at::kDouble), -1);
    return z.gather(1, at::tensor(alone.targets).unsqueeze(1)).sum();
  }

  at::Tensor SlowLoss(const std::vector<Group>& pairs, double smoothing) {
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (const Group& pair : pairs) {
      const at::Tensor gain_chosen =
          SumOf(*policy_, pair.members[0]) - SumOf(*slow_reference_, pair.members[0]).detach();
      const at::Tensor gain_rejected =
          SumOf(*policy_, pair.members[1]) - SumOf(*slow_reference_, pair.members[1]).detach();
      const at::Tensor x = kBeta * (gain_chosen - gain_rejected);
      loss = loss - (1 - smoothing) * at::log_sigmoid(x) - smoothing * at::log_sigmoid(-x);
    }
    return loss / static_cast<double>(pairs.size());
  }

  double GradientNorm() const {
    double squares = 0;
    for (const auto& p : policy_->parameters()) {
      if (p.tensor.grad().defined()) squares += p.tensor.grad().pow(2).sum().item<double>();
    }
    return std::sqrt(squares);
  }

  std::unique_ptr<TrainModel> policy_, slow_reference_;
};

TEST_F(DpoTest, LossAndGradientAreThoseOfTheSlowStep) {
  for (const double smoothing : {0.0, 0.2}) {
    Settings settings = DpoSettings();
    settings.dpo.label_smoothing = smoothing;
    const auto trainer = Make(settings);
    policy_->ZeroGrad();
    const std::vector<Group> pairs = Pairs(7);
    const at::Tensor loss = SlowLoss(pairs, smoothing);
    ASSERT_TRUE(Backward(loss).ok());

    const StepResult result = Run(*trainer, 0, pairs);
    EXPECT_NEAR(result.loss, loss.item<double>(), 1e-5);
    EXPECT_NEAR(result.grad_norm, GradientNorm(), 1e-5 * GradientNorm());
    EXPECT_EQ(result.sequences, 12);
    EXPECT_GT(result.metrics.at("dpo_accuracy"), 0);
    EXPECT_NEAR(result.metrics.at("dpo_margin"),
                result.metrics.at("dpo_reward_chosen") - result.metrics.at("dpo_reward_rejected"),
                1e-12);
  }
}

// With the smallest limit each answer is alone, so the two answers of every pair are apart.
TEST_F(DpoTest, EveryDivisionIntoMicroBatchesGivesTheSameStep) {
  Settings settings = DpoSettings();
  const auto whole = Make(settings);
  const StepResult want = Run(*whole, 0, Pairs(3));
  Run(*whole, 1, Pairs(4));
  for (const uint32_t limit : {1u, 5u, 9u, 13u, 30u}) {
    settings.micro_batch_tokens = limit;
    const auto divided = Make(settings);
    const StepResult result = Run(*divided, 0, Pairs(3));
    EXPECT_NEAR(result.loss, want.loss, 1e-6) << limit;
    EXPECT_NEAR(result.grad_norm, want.grad_norm, 1e-4 * want.grad_norm) << limit;
    EXPECT_EQ(result.metrics.at("dpo_accuracy"), want.metrics.at("dpo_accuracy")) << limit;
    Run(*divided, 1, Pairs(4));
    EXPECT_LE(MaxDifference(*divided->Weights(), *whole->Weights()), 1e-4) << limit;
  }
}

TEST_F(DpoTest, APolicyThatIsTheReferenceHasTheLossOfACoin) {
  const auto trainer = Make(DpoSettings());
  ASSERT_TRUE(trainer->SetReference(weights_).ok());
  const StepResult result = Run(*trainer, 0, Pairs(1));
  EXPECT_NEAR(result.loss, std::log(2), 1e-7);
  EXPECT_EQ(result.metrics.at("dpo_margin"), 0);
  EXPECT_EQ(result.metrics.at("dpo_accuracy"), 0);
}

TEST_F(DpoTest, APairWithoutTrainedTokensIsNotCounted) {
  std::vector<Group> pairs = Pairs(5);
  const StepResult want = Run(*Make(DpoSettings()), 0, pairs);
  std::vector<Group> more = Pairs(6, 1);
  for (Trajectory& answer : more[0].members) answer.mask.assign(answer.mask.size(), 0);
  pairs.insert(pairs.begin() + 2, more[0]);
  const StepResult result = Run(*Make(DpoSettings()), 0, pairs);
  EXPECT_EQ(result.loss, want.loss);
  EXPECT_EQ(result.grad_norm, want.grad_norm);
  EXPECT_EQ(result.metrics.at("rows_left_out"), 1);
  EXPECT_EQ(want.metrics.at("rows_left_out"), 0);
}

TEST_F(DpoTest, TheChosenAnswersBecomeMoreProbable) {
  const auto trainer = Make(DpoSettings());
  ASSERT_TRUE(trainer->SetReference(weights_).ok());
  const std::vector<Group> pairs = Pairs(11, 8);
  StepResult result;
  for (int64_t k = 0; k < 40; ++k) result = Run(*trainer, k, pairs);
  EXPECT_EQ(result.metrics.at("dpo_accuracy"), 1);
  EXPECT_GT(result.metrics.at("dpo_margin"), 1);
  EXPECT_LT(result.loss, 0.3);
}

TEST_F(DpoTest, SeveralUpdatesOfABatchTakeItsPairsInTurn) {
  Settings settings = DpoSettings();
  settings.minibatches = 3;
  const auto trainer = Make(settings);
  const StepResult result = Run(*trainer, 0, Pairs(9));
  EXPECT_EQ(trainer->updates(), 3);
  EXPECT_TRUE(std::isfinite(result.loss));

  // The same as three steps of two pairs each.
  const auto steps = Make(DpoSettings());
  const std::vector<Group> pairs = Pairs(9);
  for (int64_t k = 0; k < 3; ++k)
    Run(*steps, k, {pairs.begin() + 2 * k, pairs.begin() + 2 * k + 2});
  EXPECT_LE(MaxDifference(*trainer->Weights(), *steps->Weights()), 1e-6);
}

TEST_F(DpoTest, SettingsThatCannotTrainAreRefused) {
  Settings settings = DpoSettings();
  settings.reference = false;
  EXPECT_FALSE(Validate(settings).ok());
  settings = DpoSettings();
  settings.dpo.beta = 0;
  EXPECT_FALSE(Validate(settings).ok());
  settings = DpoSettings();
  settings.dpo.label_smoothing = 0.5;
  EXPECT_FALSE(Validate(settings).ok());
}

}  // namespace
}  // namespace sluice::trainer
