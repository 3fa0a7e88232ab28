// Training with a critic (GAE), and the coefficient of the KL in the reward that is held at a
// target.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/algorithms/presets.h"
#include "common/algorithms/registry.h"
#include "common/optim/adamw.h"
#include "services/trainer/core/critic.h"
#include "services/trainer/core/rules.h"
#include "tests/services/trainer/rank_group.h"
#include "tests/services/trainer/trainer_fixture.h"

namespace sluice::trainer {
namespace {

using ::testing::HasSubstr;

Settings CriticSettingsOfTest() {
  Settings settings = BaseSettings();
  settings.algorithm.advantage.kind = "gae";
  settings.algorithm.loss = {.kind = "ppo",
                             .prox = "recompute",
                             .clip_low = 0.2,
                             .clip_high = 0.2,
                             .dual = std::nullopt,
                             .tis = std::nullopt,
                             .veto = std::nullopt};
  settings.optimizer.eps = 1e-3;  // An update follows small gradients smoothly.
  settings.critic.lr = 1e-2;
  return settings;
}

class CriticTest : public TrainerTest {
 protected:
  // The parameters of a critic whose head is not 0.
  TensorSet RandomCritic(uint64_t seed) const {
    std::vector<TensorSpec> specs = Critic::ConfigOf(model_.config).Parameters(DType::kF32);
    specs.push_back({"value_head.bias", DType::kF32, {1}});
    specs.push_back({"value_head.weight", DType::kF32, {1, model_.config.hidden_size}});
    TensorSet set = *TensorSet::Create(std::move(specs));
    const TensorSet model = *InitWeights(model_.config, seed);
    SplitMix64 random(seed);
    for (size_t i = 0; i < set.size(); ++i) {
      const int64_t from = model.Find(set.spec(i).name);
      if (from >= 0) {
        std::copy_n(model.as<float>(static_cast<size_t>(from)).begin(), set.elements(i),
                    set.as<float>(i).begin());
      } else {
        for (float& x : set.as<float>(i)) x = static_cast<float>(random.Uniform() - 0.5);
      }
    }
    return set;
  }
  // The moments of a model or critic that has made no update.
  static TensorSet ZeroMoments(const TensorSet& parameters) {
    std::vector<TensorSpec> specs;
    for (const char* prefix : {"m.", "v."}) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        specs.push_back(parameters.spec(i));
        specs.back().name = absl::StrCat(prefix, specs.back().name);
      }
    }
    return *TensorSet::Create(std::move(specs));
  }
  // A trainer whose critic has these parameters, before its first update.
  std::unique_ptr<Trainer> MakeWith(const Settings& settings, const TensorSet& critic) {
    std::unique_ptr<Trainer> trainer = Make(settings);
    const TensorSet moments = ZeroMoments(weights_), critic_moments = ZeroMoments(critic);
    const SetSource source(&moments), critic_source(&critic_moments), parameters(&critic);
    EXPECT_EQ(trainer->Restore(weights_, source, 0, 0, {&parameters, &critic_source, 0}),
              absl::OkStatus());
    return trainer;
  }
  static at::Tensor TensorOf(const TensorSet& set, const std::string& name) {
    const size_t i = static_cast<size_t>(set.Find(name));
    const auto values = set.as<float>(i);
    at::Tensor tensor = at::tensor(std::vector<float>(values.begin(), values.end()))
                            .view(at::IntArrayRef(set.spec(i).shape));
    return tensor.requires_grad_(true);
  }
};

// AdamW's first update of a parameter. Returns the largest difference from `found`.
double DifferenceOfUpdate(const at::Tensor& parameter, const OptimizerSettings& optimizer,
                          double lr, double factor, absl::Span<const float> found) {
  std::vector<float> m(parameter.numel()), v(parameter.numel());
  AdamWStep({0.9, 0.999, optimizer.eps, optimizer.weight_decay}, 1, lr, parameter.dim() >= 2,
            factor, parameter.numel(), parameter.grad().contiguous().const_data_ptr<float>(),
            parameter.mutable_data_ptr<float>(), m.data(), v.data());
  double worst = 0;
  for (int64_t i = 0; i < parameter.numel(); ++i)
    worst = std::max(worst, std::abs(double{parameter.const_data_ptr<float>()[i]} - found[i]));
  return worst;
}

// One step, and the same written in the obvious way: sequence by sequence, with the loops of the
// algorithm sheet's sections 2.5, 3.6 and 8.
TEST_F(CriticTest, AStepEqualsItsStraightforwardForm) {
  Settings settings = CriticSettingsOfTest();
  settings.algorithm.advantage.kl = 0.1;
  settings.algorithm.advantage.gamma = 0.95;
  settings.algorithm.advantage.lam = 0.8;
  settings.algorithm.advantage.lam_value = 0.9;
  settings.algorithm.advantage.bootstrap_truncated = true;
  settings.critic.clip = std::nullopt;
  settings.reference = true;
  std::vector<Group> batch = RandomBatch(31);
  batch[1].members[2].truncated = batch[4].members[0].truncated = true;
  const TensorSet critic = RandomCritic(9);
  const std::unique_ptr<Trainer> trainer = MakeWith(settings, critic);
  const StepResult result = Run(*trainer, 0, batch);

  const auto policy = *TrainModel::Create(model_.config, DType::kF32);
  const auto reference = *TrainModel::Create(model_.config, DType::kF32);
  const auto decoder = *TrainModel::Create(Critic::ConfigOf(model_.config), DType::kF32);
  TensorSet decoder_weights = *TensorSet::Create(decoder->config().Parameters(DType::kF32));
  for (size_t i = 0; i < decoder_weights.size(); ++i) {
    const auto from =
        critic.as<float>(static_cast<size_t>(critic.Find(decoder_weights.spec(i).name)));
    std::copy(from.begin(), from.end(), decoder_weights.as<float>(i).begin());
  }
  ASSERT_TRUE(policy->Load(weights_).ok() && reference->Load(reference_).ok() &&
              decoder->Load(decoder_weights).ok());
  const at::Tensor head = TensorOf(critic, "value_head.weight");
  const at::Tensor bias = TensorOf(critic, "value_head.bias");

  std::vector<at::Tensor> lp, value;
  std::vector<std::vector<double>> advantage, target;
  double sum = 0, n = 0, kl_sum = 0;
  for (const Group& group : batch) {
    for (const Trajectory& t : group.members) {
      AloneBatch alone = PackAlone(t);
      const auto score = [&](TrainModel& model) {
        const at::Tensor z = at::log_softmax(*model.Logits(alone.packed), -1);
        return z.gather(1, at::tensor(alone.targets).unsqueeze(1)).squeeze(1);
      };
      lp.push_back(score(*policy));
      const at::Tensor kl = (lp.back() - score(*reference)).detach().to(at::kDouble).contiguous();
      value.push_back(*decoder->Project(alone.packed, head, bias));
      double next = 0;
      if (t.truncated) {
        alone.packed.score_rows = {static_cast<int64_t>(t.tokens.size()) - 1};
        next = decoder->Project(alone.packed, head, bias)->item<double>();
      }

      const at::Tensor v = value.back().detach().to(at::kDouble).contiguous();
      const int64_t tokens = v.numel();
      std::vector<double>& a = advantage.emplace_back(tokens);
      std::vector<double>& g = target.emplace_back(tokens);
      double acc = 0, acc_target = 0, sequence_kl = 0;
      for (int64_t i = tokens; i-- > 0;) {
        const double k1 = kl.const_data_ptr<double>()[i], now = v.const_data_ptr<double>()[i];
        const double reward = (i + 1 == tokens ? t.reward : 0) - 0.1 * k1;
        const double delta = reward + 0.95 * next - now;
        a[i] = acc = delta + 0.95 * 0.8 * acc;
        acc_target = delta + 0.95 * 0.9 * acc_target;
        g[i] = acc_target + now;
        next = now;
        sum += a[i], ++n;
        sequence_kl += k1 / static_cast<double>(tokens);
      }
      kl_sum += sequence_kl / static_cast<double>(batch.size() * group.members.size());
    }
  }
  double squares = 0;
  for (const auto& a : advantage) {
    for (const double x : a) squares += std::pow(x - sum / n, 2);
  }
  at::Tensor loss = at::zeros({}), value_loss = at::zeros({});
  for (size_t i = 0; i < lp.size(); ++i) {
    for (double& x : advantage[i]) x = (x - sum / n) / std::sqrt(squares / (n - 1) + 1e-8);
    // The ratio to the policy of this very step is 1, so the clip does nothing.
    loss = loss - (at::tensor(advantage[i]) * lp[i]).sum() / n;
    value_loss = value_loss + 0.5 * (value[i] - at::tensor(target[i])).square().sum() / n;
  }
  ASSERT_TRUE(Backward(loss).ok() && Backward(value_loss).ok());

  EXPECT_NEAR(result.metrics.at("value_loss"), value_loss.item<double>(), 1e-5);
  EXPECT_NEAR(result.metrics.at("reward_kl"), kl_sum, 1e-5);
  EXPECT_EQ(result.metrics.at("reward_kl_coef"), 0.1);
  EXPECT_EQ(result.metrics.at("value_lr"), 1e-2);

  const TensorSet weights = *trainer->Weights(), updated = CriticOf(*trainer);
  double norm = 0, value_norm = 0;
  for (const auto& p : policy->parameters()) norm += p.tensor.grad().square().sum().item<double>();
  std::vector<TrainModel::Parameter> of_critic = decoder->parameters();
  of_critic.push_back({"value_head.bias", bias});
  of_critic.push_back({"value_head.weight", head});
  for (const auto& p : of_critic) value_norm += p.tensor.grad().square().sum().item<double>();
  norm = std::sqrt(norm), value_norm = std::sqrt(value_norm);
  EXPECT_NEAR(result.grad_norm, norm, 1e-4 * norm);
  EXPECT_NEAR(result.metrics.at("value_grad_norm"), value_norm, 1e-4 * value_norm);

  for (size_t i = 0; i < weights.size(); ++i)
    EXPECT_LE(DifferenceOfUpdate(policy->parameters()[i].tensor, settings.optimizer, result.lr,
                                 std::min(1.0, 1 / (norm + 1e-6)), weights.as<float>(i)),
              2e-5);
  ASSERT_EQ(of_critic.size(), updated.size());
  for (size_t i = 0; i < updated.size(); ++i) {
    EXPECT_EQ(updated.spec(i).name, of_critic[i].name);
    EXPECT_LE(DifferenceOfUpdate(of_critic[i].tensor, settings.optimizer, 1e-2,
                                 std::min(1.0, 1 / (value_norm + 1e-6)), updated.as<float>(i)),
              2e-5);
  }
  EXPECT_GT(MaxDifference(updated, critic), 1e-4);
}

TEST_F(CriticTest, AtTheStartItHasTheWeightsOfThePolicyAndPredicts0) {
  const std::unique_ptr<Trainer> trainer = Make(CriticSettingsOfTest());
  const TensorSet critic = CriticOf(*trainer);
  ASSERT_EQ(critic.size(), weights_.size() + 2);
  for (size_t i = 0; i < weights_.size(); ++i) {
    const int64_t at = critic.Find(weights_.spec(i).name);
    ASSERT_GE(at, 0);
    EXPECT_EQ(critic.as<float>(static_cast<size_t>(at)), weights_.as<float>(i));
  }
  for (const char* name : {"value_head.bias", "value_head.weight"}) {
    for (const float x : critic.as<float>(static_cast<size_t>(critic.Find(name)))) EXPECT_EQ(x, 0);
  }
  // With values of 0 and lambda 1 the targets are the returns.
  Settings settings = CriticSettingsOfTest();
  settings.algorithm.advantage.lam = 1;
  settings.algorithm.advantage.raw = true;
  settings.critic.clip = std::nullopt;
  const std::vector<Group> batch = RandomBatch(4);
  double squares = 0, tokens = 0;
  for (const Group& group : batch) {
    for (const Trajectory& t : group.members) {
      for (const uint8_t m : t.mask) squares += m * t.reward * t.reward / 2, tokens += m;
    }
  }
  EXPECT_NEAR(Run(*Make(settings), 0, batch).metrics.at("value_loss"), squares / tokens, 1e-6);
}

TEST_F(CriticTest, ItMayBeginWithTheWeightsOfAnotherModelOnAllRanks) {
  const Settings settings = CriticSettingsOfTest();
  const std::unique_ptr<Trainer> trainer = Make(settings);
  ASSERT_EQ(trainer->Load(weights_, &reference_), absl::OkStatus());
  EXPECT_TRUE(SameBits(*trainer->Weights(), weights_));
  const TensorSet critic = CriticOf(*trainer);
  for (size_t i = 0; i < critic.size(); ++i) {
    const int64_t from = reference_.Find(critic.spec(i).name);
    if (from < 0) continue;  // The head.
    EXPECT_THAT(critic.as<float>(i),
                testing::ElementsAreArray(reference_.as<float>(static_cast<size_t>(from))));
  }

  RankGroup group(2, model_.config, settings);
  ASSERT_EQ(group->Load(weights_, &reference_), absl::OkStatus());
  for (int64_t k = 0; k < 2; ++k) {
    const StepResult alone = Run(*trainer, k, RandomBatch(60 + k, 5, k)),
                     together = Run(*group, k, RandomBatch(60 + k, 5, k));
    EXPECT_NEAR(together.metrics.at("value_loss"), alone.metrics.at("value_loss"), 1e-5);
  }
  EXPECT_LE(MaxDifference(CriticOf(*group), CriticOf(*trainer)), 1e-4);
  EXPECT_FALSE(trainer->Load(weights_, &teacher_).ok()) << "another shape";
}

TEST_F(CriticTest, ItLearnsToPredictTheRewards) {
  Settings settings = CriticSettingsOfTest();
  settings.optimizer.lr = 0;
  settings.critic.clip = std::nullopt;
  settings.optimizer.eps = 1e-8;
  const std::unique_ptr<Trainer> trainer = Make(settings);
  const double before = Run(*trainer, 0, RandomBatch(5)).metrics.at("value_loss");
  StepResult result;
  for (int64_t k = 1; k < 60; ++k) result = Run(*trainer, k, RandomBatch(5, 6, k));
  EXPECT_LT(result.metrics.at("value_loss"), before / 4);
  EXPECT_GT(result.metrics.at("explained_variance"), 0.5);
}

TEST_F(CriticTest, AModelWithAHeadOfItsOwnHasACriticWithoutIt) {
  const ModelDir untied = TinyModelDir(kVocab, /*tied=*/false);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Settings settings = CriticSettingsOfTest();
    settings.dtype = dtype;
    const std::unique_ptr<Trainer> trainer =
        *Trainer::Create(settings, untied.config, Clock::Real());
    ASSERT_EQ(trainer->Load(*InitWeights(untied.config, 3)), absl::OkStatus());
    const TensorSet before = CriticOf(*trainer);
    EXPECT_EQ(before.Find("lm_head.weight"), -1);
    EXPECT_EQ(Run(*trainer, 0, RandomBatch(1)).skipped, "");
    EXPECT_GT(MaxDifference(CriticOf(*trainer), before), 1e-4);
  }
}

TEST_F(CriticTest, WarmUpTrainsTheCriticAlone) {
  Settings settings = CriticSettingsOfTest();
  settings.critic.warmup = 2;
  settings.algorithm.advantage.kl = 0.1;
  settings.algorithm.advantage.kl_target = 0.01;
  settings.algorithm.advantage.kl_horizon = 100;
  settings.reference = true;
  settings.minibatches = 2;
  const std::unique_ptr<Trainer> trainer = Make(settings);
  for (int64_t k = 0; k < 2; ++k) {
    const TensorSet critic = CriticOf(*trainer);
    const StepResult result = Run(*trainer, k, RandomBatch(k, 6, k));
    EXPECT_TRUE(result.critic_alone);
    EXPECT_EQ(result.skipped, "");
    EXPECT_EQ(result.skips_in_a_row, 0);
    EXPECT_GT(result.metrics.at("value_loss"), 0);
    EXPECT_FALSE(result.metrics.contains("entropy"));
    EXPECT_GT(result.tokens, 0);
    EXPECT_TRUE(SameBits(*trainer->Weights(), weights_));
    EXPECT_GT(MaxDifference(CriticOf(*trainer), critic), 1e-4);
    EXPECT_EQ(trainer->reward_kl(), 0.1);
  }
  EXPECT_EQ(trainer->updates(), 0);
  EXPECT_EQ(trainer->critic_updates(), 4);

  const StepResult result = Run(*trainer, 2, RandomBatch(2, 6, 2));
  EXPECT_FALSE(result.critic_alone);
  EXPECT_EQ(trainer->updates(), 2);
  EXPECT_EQ(trainer->critic_updates(), 6);
  EXPECT_FALSE(SameBits(*trainer->Weights(), weights_));
}

TEST_F(CriticTest, T27AStepThatIsSkippedLeavesTheCriticAsItWasToo) {
  Settings settings = CriticSettingsOfTest();
  settings.algorithm.advantage.kl = 0.1;
  settings.algorithm.advantage.kl_target = 0.01;
  settings.reference = true;
  settings.algorithm.loss.k3_max = 1e-9;  // Rejects every answer whose tokens are not on-policy.
  const std::unique_ptr<Trainer> trainer = Make(settings);
  const TensorSet critic = CriticOf(*trainer);
  EXPECT_EQ(Run(*trainer, 0, RandomBatch(1)).skipped, "no_terms");
  EXPECT_EQ(Run(*trainer, 1, {}).skipped, "no_tokens");
  EXPECT_TRUE(SameBits(CriticOf(*trainer), critic));
  EXPECT_EQ(trainer->critic_updates(), 0);
  EXPECT_EQ(trainer->reward_kl(), 0.1);

  settings.algorithm.loss.k3_max.reset();
  settings.critic.warmup = 1;
  TensorSet broken = RandomCritic(2);
  broken.as<float>(0)[0] = std::numeric_limits<float>::quiet_NaN();
  const std::unique_ptr<Trainer> second = MakeWith(settings, broken);
  const TensorSet broken_moments = CriticMomentsOf(*second);
  for (int64_t k = 0; k < 2; ++k) {
    const StepResult skipped = Run(*second, k, RandomBatch(1, 6, k));
    EXPECT_EQ(skipped.skipped, "nonfinite_value");
    EXPECT_EQ(skipped.skips_in_a_row, k + 1);
    EXPECT_TRUE(SameBits(*second->Weights(), weights_));
    EXPECT_TRUE(SameBits(CriticMomentsOf(*second), broken_moments));
    EXPECT_EQ(second->updates() + second->critic_updates(), 0);
  }
}

TEST_F(CriticTest, T24ARunWithWarmUpAndAnAdaptedKlGoesOnBitForBit) {
  Settings settings = CriticSettingsOfTest();
  settings.algorithm = FindRow(PresetRows(), "ppo_critic")->value;
  settings.algorithm.advantage.kl_target = 0.02;
  settings.algorithm.advantage.kl_horizon = 50;
  settings.minibatches = 2;
  settings.critic.warmup = 2;
  settings.reference = true;
  const std::unique_ptr<Trainer> whole = Make(settings);
  for (int64_t k = 0; k < 6; ++k) Run(*whole, k, RandomBatch(20 + k, 6, k));
  EXPECT_NE(whole->reward_kl(), 0.001);

  // The checkpoints lie in the warm-up, at its end, and after it.
  for (const int64_t at : {1, 2, 4}) {
    const std::unique_ptr<Trainer> first = Make(settings);
    for (int64_t k = 0; k < at; ++k) Run(*first, k, RandomBatch(20 + k, 6, k));
    const Checkpoint found = WriteAndRead(*first, {});
    const std::unique_ptr<Trainer> second = Make(settings);
    GoOnFrom(found, *second);
    for (int64_t k = at; k < 6; ++k) Run(*second, k, RandomBatch(20 + k, 6, k));
    EXPECT_TRUE(SameBits(*second->Weights(), *whole->Weights())) << at;
    EXPECT_TRUE(SameBits(MomentsOf(*second), MomentsOf(*whole))) << at;
    EXPECT_TRUE(SameBits(CriticOf(*second), CriticOf(*whole))) << at;
    EXPECT_TRUE(SameBits(CriticMomentsOf(*second), CriticMomentsOf(*whole))) << at;
    EXPECT_EQ(second->reward_kl(), whole->reward_kl()) << at;
    EXPECT_EQ(second->critic_updates(), whole->critic_updates()) << at;
  }

  // What is lost with the critic shows in the weights.
  const std::unique_ptr<Trainer> first = Make(settings), fresh = Make(settings);
  for (int64_t k = 0; k < 4; ++k) Run(*first, k, RandomBatch(20 + k, 6, k));
  const Checkpoint found = WriteAndRead(*first, {});
  EXPECT_EQ(fresh->Restore(found.model, *found.optimizer, found.state.updates, 0).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CriticTest, ASnapshotOfTheCriticIsReadAsItWasWhileTrainingGoesOn) {
  const std::unique_ptr<Trainer> trainer = Make(CriticSettingsOfTest());
  Run(*trainer, 0, RandomBatch(1));
  const TensorSet critic = CriticOf(*trainer), moments = CriticMomentsOf(*trainer);
  const Trainer::Sources early = *trainer->TakeSnapshot();
  Run(*trainer, 1, RandomBatch(2, 6, 1));
  EXPECT_TRUE(SameBits(*ReadAll(*early.critic), critic));
  EXPECT_TRUE(SameBits(*ReadAll(*early.critic_moments), moments));
  EXPECT_FALSE(SameBits(CriticOf(*trainer), critic));
  // A new start of the same trainer does not reach what is still to be written either.
  const Trainer::Sources late = *trainer->TakeSnapshot();
  const TensorSet now = CriticOf(*trainer);
  ASSERT_EQ(trainer->Load(weights_), absl::OkStatus());
  EXPECT_TRUE(SameBits(*ReadAll(*late.critic), now));
}

TEST_F(CriticTest, ValuesMoveOnlyWithinTheClip) {
  Settings settings = CriticSettingsOfTest();
  settings.minibatches = 1;
  settings.critic.clip = 1e-9;
  const TensorSet critic = RandomCritic(9);
  const std::unique_ptr<Trainer> trainer = MakeWith(settings, critic);
  // In the first update of a batch all values are the old ones, so that the clip does nothing.
  EXPECT_GT(Run(*trainer, 0, RandomBatch(3)).metrics.at("value_grad_norm"), 0);

  // One group in each update of the same step: the second starts away from the old values, and what
  // has moved towards its target gains nothing more.
  settings.minibatches = 2;
  std::vector<Group> twice = RandomBatch(3, 1);
  twice.push_back(twice.front());
  const StepResult clipped = Run(*MakeWith(settings, critic), 0, twice);
  settings.critic.clip = std::nullopt;
  const StepResult free = Run(*MakeWith(settings, critic), 0, twice);
  EXPECT_LT(clipped.metrics.at("value_grad_norm"), 0.5 * free.metrics.at("value_grad_norm"));
}

TEST_F(CriticTest, AnAnswerThatWasCutEndsUnlessItIsBootstrapped) {
  Settings settings = CriticSettingsOfTest();
  settings.algorithm.advantage.raw = true;
  Trajectory t;
  t.tokens = {1, 2, 3, 4, 5};
  t.mask = {0, 0, 1, 1, 1};
  t.logprobs.assign(5, -2);
  t.versions = {-1, -1, 0, 0, 0};
  t.truncated = true;
  t.values = {0.2f, 0.5f, 0.6f};
  const auto advantages = [&](const Trajectory& trajectory) {
    const Rules rules = *ResolveRules(settings);
    SequenceBuilder builder(settings, rules, 0);
    Group group;
    group.members = {trajectory};
    std::vector<Sequence> sequences;
    EXPECT_EQ(builder.Add({group}, &sequences), absl::OkStatus());
    return sequences.at(0).advantage;
  };
  EXPECT_THAT(advantages(t), ::testing::Pointwise(::testing::FloatNear(1e-6),
                                                  {-0.2f + 0.5f * 0.05f + 0.6f * 0.0475f,
                                                   -0.5f + 0.6f * 0.05f, -0.6f}));
  // The example of the algorithm sheet.
  t.values.push_back(0.7f);
  EXPECT_THAT(advantages(t),
              ::testing::Pointwise(::testing::FloatNear(1e-6), {0.485250f, 0.195f, 0.1f}));

  // The trainer computes the value of the end only where it is used.
  for (const bool bootstraps : {false, true}) {
    settings.algorithm.advantage.bootstrap_truncated = bootstraps;
    std::vector<Group> cut = RandomBatch(3), whole = cut;
    for (Group& group : cut) {
      for (Trajectory& member : group.members) member.truncated = true;
    }
    const TensorSet critic = RandomCritic(9);
    const StepResult a = Run(*MakeWith(settings, critic), 0, cut),
                     b = Run(*MakeWith(settings, critic), 0, whole);
    EXPECT_EQ(a.metrics.at("value_loss") == b.metrics.at("value_loss"), !bootstraps);
  }
}

TEST_F(CriticTest, OneAnswerToAPromptIsEnough) {
  Settings settings = CriticSettingsOfTest();
  settings.group_size = 1;
  std::vector<Group> batch = RandomBatch(8);
  for (Group& group : batch) group.members.resize(1);
  const std::unique_ptr<Trainer> trainer = Make(settings);
  const StepResult result = Run(*trainer, 0, batch);
  EXPECT_EQ(result.skipped, "");
  EXPECT_FALSE(SameBits(*trainer->Weights(), weights_));
  // Groups of one have no spread, and it says nothing here.
  EXPECT_FALSE(result.metrics.contains("flat_share"));
}

TEST_F(CriticTest, APolicyOfLowRankHasACriticOfAllWeights) {
  Settings settings = CriticSettingsOfTest();
  settings.lora = {.rank = 2, .alpha = 4};
  const std::unique_ptr<Trainer> trainer = Make(settings);
  ASSERT_EQ(trainer->SetReference(weights_), absl::OkStatus());
  const TensorSet critic = CriticOf(*trainer);
  EXPECT_EQ(Run(*trainer, 0, RandomBatch(1)).skipped, "");
  EXPECT_GT(MaxDifference(CriticOf(*trainer), critic), 1e-4);
  EXPECT_FALSE(SameBits(*trainer->Weights(), weights_));
}

// The experts that were recorded are those of the policy, whose forward pass follows them.
TEST_F(CriticTest, InAMixtureOfExpertsItsOwnRouterChooses) {
  const ModelConfig config = *ParseModelConfig(
      R"({"architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 16, "hidden_size": 16,
      "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
      "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64,
      "initializer_range": 0.3, "num_experts": 4, "num_experts_per_tok": 2,
      "moe_intermediate_size": 12, "norm_topk_prob": true})",
      "experts");
  std::vector<std::unique_ptr<Trainer>> trainers;
  std::vector<StepResult> results;
  for (const bool recorded : {false, true}) {
    trainers.push_back(*Trainer::Create(CriticSettingsOfTest(), config, Clock::Real()));
    ASSERT_EQ(trainers.back()->Load(*InitWeights(config, 3)), absl::OkStatus());
    for (int64_t k = 0; k < 2; ++k) {
      std::vector<Group> batch = RandomBatch(k, 6, k);
      for (Group& group : batch) {
        for (Trajectory& t : group.members) {
          for (size_t i = 0; recorded && i < t.tokens.size(); ++i)
            t.routing.insert(t.routing.end(), {0, 3});
        }
      }
      results.push_back(Run(*trainers.back(), k, std::move(batch)));
    }
  }
  EXPECT_GT(std::abs(results[2].metrics.at("entropy") - results[0].metrics.at("entropy")), 1e-4);
  for (int k = 0; k < 2; ++k) {
    EXPECT_NEAR(results[2 + k].metrics.at("value_loss"), results[k].metrics.at("value_loss"), 1e-6);
  }
  EXPECT_LE(MaxDifference(CriticOf(*trainers[0]), CriticOf(*trainers[1])), 1e-5);
}

TEST_F(CriticTest, TheKlCoefficientRisesAboveItsTargetAndFallsBelowIt) {
  for (const char* kind : {"gae", "rloo"}) {
    for (const double target : {1e-6, 100.0}) {
      SCOPED_TRACE(absl::StrCat(kind, " ", target));
      Settings settings = CriticSettingsOfTest();
      settings.algorithm.advantage = {.kind = kind, .kl = 0.01, .kl_target = target};
      settings.algorithm.advantage.kl_horizon = 240;  // Ten steps of 24 answers.
      settings.algorithm.loss.prox = "none";
      settings.reference = true;
      const std::unique_ptr<Trainer> trainer = Make(settings);
      double wanted = 0.01;
      for (int64_t k = 0; k < 4; ++k) {
        const StepResult result = Run(*trainer, k, RandomBatch(k, 6, k));
        EXPECT_DOUBLE_EQ(result.metrics.at("reward_kl_coef"), wanted);
        const double kl = result.metrics.at("reward_kl");
        wanted *= 1 + (kl > target ? 0.2 : -0.2) * 24 / 240;
        EXPECT_DOUBLE_EQ(trainer->reward_kl(), wanted);
      }
    }
  }
  Settings fixed = CriticSettingsOfTest();
  fixed.algorithm.advantage.kl = 0.01;
  fixed.reference = true;
  const std::unique_ptr<Trainer> trainer = Make(fixed);
  Run(*trainer, 0, RandomBatch(1));
  EXPECT_EQ(trainer->reward_kl(), 0.01);
}

TEST_F(CriticTest, SettingsOfTheCriticOutOfRangeAreRefusedByName) {
  const auto refuse = [](void (*edit)(CriticSettings&), const char* text) {
    Settings settings = CriticSettingsOfTest();
    edit(settings.critic);
    EXPECT_THAT(std::string(Validate(settings).message()), HasSubstr(text));
  };
  refuse([](CriticSettings& c) { c.lr = -1; }, "trainer.critic.lr is -1");
  refuse([](CriticSettings& c) { c.max_grad_norm = -1; }, "trainer.critic.max_grad_norm is -1");
  refuse([](CriticSettings& c) { c.clip = 0; }, "trainer.critic.clip is 0");
  refuse([](CriticSettings& c) { c.warmup = -1; }, "trainer.critic.warmup is -1");
  EXPECT_FALSE(HasCritic(BaseSettings()));
  Settings sft = CriticSettingsOfTest();
  sft.kind = Settings::Kind::kSft;
  EXPECT_FALSE(HasCritic(sft));
}

}  // namespace
}  // namespace sluice::trainer
