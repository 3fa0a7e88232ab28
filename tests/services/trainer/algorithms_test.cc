// Steps of the trainer under algorithms whose terms depend on the whole step, against the same step
// written in the obvious way: sequence by sequence, in fp64 where a statistic is computed, with
// LibTorch's own operations.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/algorithms/presets.h"
#include "common/algorithms/registry.h"
#include "common/models/train_model.h"
#include "common/optim/adamw.h"
#include "services/trainer/core/rules.h"
#include "services/trainer/core/sequences.h"
#include "services/trainer/core/settings.h"
#include "tests/services/trainer/all_algorithms.h"
#include "tests/services/trainer/trainer_fixture.h"

namespace sluice::trainer {
namespace {

// One trained sequence of a batch, with what a loss needs.
struct Scored {
  size_t group = 0;
  double reward = 0;
  at::Tensor lp, entropy;        // [T] with gradient.
  std::vector<double> lp_value;  // [T] the values of lp.
  std::vector<double> behav, ref, teacher;
  at::Tensor teacher_kl;  // [T] with gradient.
};

class AlgorithmsTest : public TrainerTest {
 protected:
  AlgorithmsTest()
      : slow_(*TrainModel::Create(model_.config, DType::kF32)),
        slow_reference_(*TrainModel::Create(model_.config, DType::kF32)),
        slow_teacher_(*TrainModel::Create(teacher_config_, DType::kF32)) {
    EXPECT_TRUE(slow_->Load(weights_).ok() && slow_reference_->Load(reference_).ok() &&
                slow_teacher_->Load(teacher_).ok());
  }

  static std::vector<double> Values(const at::Tensor& tensor) {
    const at::Tensor values = tensor.detach().to(at::kDouble).contiguous();
    return {values.data_ptr<double>(), values.data_ptr<double>() + values.numel()};
  }

  std::vector<Scored> ScoreAll(const std::vector<Group>& batch) {
    std::vector<Scored> all;
    for (size_t g = 0; g < batch.size(); ++g) {
      for (const Trajectory& t : batch[g].members) {
        const AloneBatch alone = PackAlone(t);
        Scored& scored = all.emplace_back();
        scored.group = g;
        scored.reward = t.reward;
        for (size_t i = 0; i < t.tokens.size(); ++i) {
          if (t.mask[i]) scored.behav.push_back(t.logprobs[i]);
        }
        const auto scores = [&](TrainModel& m) {
          const at::Tensor z = at::log_softmax(*m.Logits(alone.packed), -1);
          return std::pair(z.gather(1, at::tensor(alone.targets).unsqueeze(1)).squeeze(1),
                           -(z.exp() * z).sum(-1));
        };
        std::tie(scored.lp, scored.entropy) = scores(*slow_);
        scored.lp_value = Values(scored.lp);
        scored.ref = Values(scores(*slow_reference_).first);
        scored.teacher = Values(scores(*slow_teacher_).first);
        const at::Tensor log_p = at::log_softmax(*slow_->Logits(alone.packed), -1);
        const at::Tensor log_q = at::log_softmax(slow_teacher_->Logits(alone.packed)->detach(), -1);
        scored.teacher_kl = (log_p.exp() * (log_p - log_q)).sum(-1);
      }
    }
    return all;
  }

  double GradientNorm() const {
    double squares = 0;
    for (const auto& p : slow_->parameters()) {
      if (p.tensor.grad().defined()) squares += p.tensor.grad().pow(2).sum().item<double>();
    }
    return std::sqrt(squares);
  }

  // Makes AdamW's first update from the gradients of the slow model, and compares with the trainer.
  void ExpectSameUpdate(Trainer& trainer, const Settings& settings, const StepResult& result) {
    const double norm = GradientNorm();
    EXPECT_NEAR(result.grad_norm, norm, 1e-4 * norm + 1e-9);
    for (const auto& p : slow_->parameters()) {
      std::vector<float> m(p.tensor.numel()), v(p.tensor.numel());
      AdamWStep({0.9, 0.999, settings.optimizer.eps, 0.01}, 1, result.lr, p.tensor.dim() >= 2,
                std::min(1.0, 1.0 / (norm + 1e-6)), p.tensor.numel(),
                p.tensor.grad().contiguous().const_data_ptr<float>(),
                p.tensor.mutable_data_ptr<float>(), m.data(), v.data());
    }
    TensorSet expected = weights_;
    ASSERT_TRUE(slow_->Store(&expected).ok());
    EXPECT_LE(MaxDifference(*trainer.Weights(), expected), 2e-5);
    EXPECT_GT(MaxDifference(*trainer.Weights(), weights_), 1e-4);
  }

  // Settings under which an update follows small gradients smoothly.
  static Settings SmoothSettings() {
    Settings settings = BaseSettings();
    settings.algorithm.loss.entropy = 0;
    settings.optimizer.eps = 1e-3;
    return settings;
  }

  const std::unique_ptr<TrainModel> slow_, slow_reference_, slow_teacher_;
};

at::Tensor Column(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble).to(at::kFloat);
}

TEST_F(AlgorithmsTest, T16TheBaselineOfMinimumVarianceGivesTheDirectGradient) {
  Settings settings = SmoothSettings();
  settings.algorithm = FindRow(PresetRows(), "async_vcpo")->value;
  settings.algorithm.loss.entropy = 0.02;
  settings.reference = true;
  settings.algorithm.loss.kl = 0.05;
  settings.algorithm.loss.kl_kind = "k2";
  std::vector<Group> batch = RandomBatch(31);
  // A group of equal rewards has no advantage, but its KL and entropy terms count.
  for (Trajectory& t : batch[2].members) t.reward = 0.5;
  const std::unique_ptr<Trainer> trainer = Make(settings);
  const StepResult result = Run(*trainer, 0, batch);

  std::vector<Scored> all = ScoreAll(batch);
  std::vector<double> power, weight, advantages(all.size(), 0.0);
  double ess_sum = 0, ess_squares = 0;
  for (Scored& s : all) {
    double log_rho = 0;
    for (size_t t = 0; t < s.behav.size(); ++t) log_rho += s.lp_value[t] - s.behav[t];
    ess_sum += std::exp(log_rho);
    ess_squares += std::exp(2 * log_rho);
    weight.push_back(std::min(8.0, std::exp(log_rho)));
    // The score is the gradient of the sequence's log-prob.
    slow_->ZeroGrad();
    ASSERT_TRUE(Backward(s.lp.sum(), /*keep_graph=*/true).ok());
    power.push_back(std::pow(weight.back() * GradientNorm(), 2));
  }
  slow_->ZeroGrad();
  for (size_t first = 0; first < all.size(); first += 4) {
    double mean = 0, squares = 0, weighted = 0, sum = 0;
    for (size_t i = first; i < first + 4; ++i) {
      mean += all[i].reward / 4;
      weighted += power[i] * all[i].reward;
      sum += power[i];
    }
    for (size_t i = first; i < first + 4; ++i) squares += std::pow(all[i].reward - mean, 2) / 4;
    if (squares < 1e-12) continue;
    for (size_t i = first; i < first + 4; ++i)
      advantages[i] = (all[i].reward - weighted / sum) / std::sqrt(squares);
  }
  const double sequences = static_cast<double>(all.size());
  at::Tensor loss = at::zeros({}, at::kFloat);
  for (size_t i = 0; i < all.size(); ++i) {
    const at::Tensor d = all[i].lp - Column(all[i].ref);
    const at::Tensor token =
        -weight[i] * advantages[i] * all[i].lp + 0.05 * d.square() / 2 - 0.02 * all[i].entropy;
    loss = loss + token.mean() / sequences;
  }
  ASSERT_TRUE(Backward(loss).ok());

  EXPECT_NEAR(result.loss, loss.item<double>(), 1e-4);
  const double factor = std::sqrt(ess_sum * ess_sum / ess_squares / sequences);
  EXPECT_NEAR(result.metrics.at("ess_lr_factor"), factor, 1e-5);
  EXPECT_NEAR(result.lr, 1e-2 * factor, 1e-7);
  double advantage_mean = 0, tokens = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const double n = static_cast<double>(all[i].behav.size());
    advantage_mean += advantages[i] * n, tokens += n;
  }
  EXPECT_NEAR(result.metrics.at("advantage_mean"), advantage_mean / tokens, 1e-4);
  ExpectSameUpdate(*trainer, settings, result);
}

TEST_F(AlgorithmsTest, ReinforcePlusPlusWhitensReturnsThatCarryTheKlOfEachToken) {
  Settings settings = SmoothSettings();
  settings.algorithm.advantage.kind = "reinforce_pp";
  settings.algorithm.advantage.kl = 0.1;
  settings.algorithm.advantage.gamma = 0.9;
  settings.algorithm.loss = {.kind = "reinforce",
                             .prox = "recompute",
                             .dual = std::nullopt,
                             .tis = std::nullopt,
                             .veto = std::nullopt};
  settings.reference = true;
  const std::vector<Group> batch = RandomBatch(32);
  const std::unique_ptr<Trainer> trainer = Make(settings);
  const StepResult result = Run(*trainer, 0, batch);

  std::vector<Scored> all = ScoreAll(batch);
  std::vector<std::vector<double>> returns;
  double sum = 0, n = 0;
  for (const Scored& s : all) {
    std::vector<double>& g = returns.emplace_back(s.behav.size());
    double next = 0;
    for (size_t t = g.size(); t-- > 0;) {
      const double last = t + 1 == g.size() ? s.reward : 0;
      g[t] = next = last - 0.1 * (s.lp_value[t] - s.ref[t]) + 0.9 * next;
      sum += next, ++n;
    }
  }
  double squares = 0;
  for (const auto& g : returns) {
    for (const double v : g) squares += std::pow(v - sum / n, 2);
  }
  at::Tensor loss = at::zeros({}, at::kFloat);
  for (size_t i = 0; i < all.size(); ++i) {
    for (double& v : returns[i]) v = (v - sum / n) / std::sqrt(squares / (n - 1) + 1e-8);
    loss = loss - (Column(returns[i]) * all[i].lp).sum() / n;
  }
  ASSERT_TRUE(Backward(loss).ok());
  ExpectSameUpdate(*trainer, settings, result);
}

TEST_F(AlgorithmsTest, WhatATokenEarnedIsInTheReturnsUpToItAndTurnsCountByTheirTime) {
  Settings settings = SmoothSettings();
  settings.algorithm.advantage = {.kind = "reinforce_pp", .gamma = 0.9, .duration_aware = true};
  settings.algorithm.loss = {.kind = "reinforce",
                             .prox = "recompute",
                             .dual = std::nullopt,
                             .tis = std::nullopt,
                             .veto = std::nullopt};
  std::vector<Group> batch = RandomBatch(33);
  RewardTokens(1, batch);
  batch[0].members[0].turns[0].seconds = 0;     // It is not known.
  batch[1].members[1].turns[0].seconds = 1000;  // Its factor has a bound.
  const std::unique_ptr<Trainer> trainer = Make(settings);
  const StepResult result = Run(*trainer, 0, batch);

  std::vector<Scored> all = ScoreAll(batch);
  std::vector<std::vector<double>> returns;
  double sum = 0, n = 0, seconds = 0, turns = 0, rewarded = 0;
  for (const Group& group : batch) {
    for (const Trajectory& t : group.members) {
      std::vector<double> earned(t.tokens.size()), g;
      double rest = t.reward;
      for (const TokenReward& r : t.token_rewards) {
        size_t owner = r.position;
        while (!t.mask[owner]) --owner;
        earned[owner] += r.value;
        rest -= r.value;
        rewarded += t.mask[r.position];
      }
      size_t last = t.tokens.size() - 1;
      while (!t.mask[last]) --last;
      earned[last] += rest;
      double next = 0;
      for (size_t i = t.tokens.size(); i-- > 0;) {
        if (!t.mask[i]) continue;
        g.insert(g.begin(), next = earned[i] + 0.9 * next);
        sum += next, ++n;
      }
      returns.push_back(g);
      for (const Turn& turn : t.turns) {
        const bool trained =
            std::any_of(t.mask.begin() + turn.first, t.mask.begin() + turn.first + turn.count,
                        [](uint8_t m) { return m != 0; });
        if (trained && turn.seconds > 0) seconds += turn.seconds, ++turns;
      }
    }
  }
  double squares = 0;
  for (const auto& g : returns) {
    for (const double v : g) squares += std::pow(v - sum / n, 2);
  }
  at::Tensor loss = at::zeros({}, at::kFloat);
  size_t i = 0;
  for (const Group& group : batch) {
    for (const Trajectory& t : group.members) {
      std::vector<double> advantage;
      for (size_t at = 0, token = 0; at < t.tokens.size(); ++at) {
        if (!t.mask[at]) continue;
        const double dt = t.turns[at >= t.turns[0].first + t.turns[0].count].seconds,
                     factor = dt > 0 ? std::min(10.0, dt / (seconds / turns)) : 1;
        advantage.push_back((returns[i][token++] - sum / n) / std::sqrt(squares / (n - 1) + 1e-8) *
                            factor);
      }
      loss = loss - (Column(advantage) * all[i++].lp).sum() / n;
    }
  }
  ASSERT_TRUE(Backward(loss).ok());
  ExpectSameUpdate(*trainer, settings, result);
  EXPECT_NEAR(result.metrics.at("turn_seconds"), seconds / turns, 1e-9);
  EXPECT_EQ(result.metrics.at("rewarded_tokens"), rewarded);
}

TEST_F(AlgorithmsTest, RewardsOfSingleTokensReachTheAdvantagesAndTargetsOfGae) {
  Settings settings = BaseSettings();
  settings.algorithm.advantage = {.kind = "gae", .gamma = 0.9, .lam = 0.7, .lam_value = 0.8};
  const Rules rules = *ResolveRules(settings);
  std::vector<Group> batch = RandomBatch(34, 2);
  RewardTokens(2, batch);
  for (Group& group : batch) {
    for (Trajectory& t : group.members) {
      for (size_t i = 0; i < t.tokens.size(); ++i) {
        if (t.mask[i]) t.values.push_back(0.1f * static_cast<float>(i));
      }
    }
  }
  std::vector<Sequence> sequences;
  SequenceBuilder builder(settings, rules, 0);
  ASSERT_EQ(builder.Add(batch, &sequences), absl::OkStatus());
  ASSERT_EQ(sequences.size(), 8u);
  for (size_t n = 0; n < sequences.size(); ++n) {
    const Trajectory& t = batch[n / 4].members[n % 4];
    double rest = t.reward, next_value = 0, advantage = 0, target = 0, earned = 0;
    for (const TokenReward& r : t.token_rewards) rest -= r.value;
    size_t token = t.values.size();
    for (size_t i = t.tokens.size(); i-- > 2;) {
      for (const TokenReward& r : t.token_rewards) earned += r.position == i ? r.value : 0;
      if (!t.mask[i]) continue;
      --token;
      const double reward = std::exchange(earned, 0) + (token + 1 == t.values.size() ? rest : 0),
                   delta = reward + 0.9 * next_value - t.values[token];
      advantage = delta + 0.9 * 0.7 * advantage;
      target = delta + 0.9 * 0.8 * target;
      next_value = t.values[token];
      EXPECT_NEAR(sequences[n].advantage[token], advantage, 1e-6) << n;
      EXPECT_NEAR(sequences[n].value_target[token], target + t.values[token], 1e-6) << n;
    }
  }
}

TEST_F(AlgorithmsTest, RewardsOfSingleTokensThatAreMalformedOrWouldBeLostEndTheStep) {
  Settings settings = BaseSettings();
  settings.algorithm.advantage.kind = "reinforce_pp";
  const auto add = [&](std::vector<TokenReward> rewards) {
    const Rules rules = *ResolveRules(settings);
    std::vector<Group> batch = RandomBatch(35, 1);
    batch[0].members[1].token_rewards = std::move(rewards);
    std::vector<Sequence> sequences;
    return SequenceBuilder(settings, rules, 0).Add(batch, &sequences);
  };
  EXPECT_EQ(add({{2, 0.5}}), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(add({{100, 0.5}})));
  EXPECT_TRUE(absl::IsInvalidArgument(add({{2, 0.5}, {2, 0.5}})));
  EXPECT_TRUE(absl::IsInvalidArgument(add({{2, std::nan("")}})));
  settings.algorithm.advantage.kind = "grpo";
  const absl::Status lost = add({{2, 0.5}});
  EXPECT_TRUE(absl::IsInvalidArgument(lost));
  EXPECT_THAT(std::string(lost.message()), testing::HasSubstr("reinforce_pp or gae"));
}

TEST_F(AlgorithmsTest, TheKlOfAnAnswerIsSubtractedFromItsRewardBeforeTheGroupIsCompared) {
  Settings settings = SmoothSettings();
  settings.algorithm.advantage.kind = "rloo";
  settings.algorithm.advantage.kl = 0.3;
  settings.algorithm.loss = {.kind = "cispo",
                             .prox = "none",
                             .dual = std::nullopt,
                             .tis = std::nullopt,
                             .veto = std::nullopt};
  settings.reference = true;
  const std::vector<Group> batch = RandomBatch(33);
  const std::unique_ptr<Trainer> trainer = Make(settings);
  const StepResult result = Run(*trainer, 0, batch);

  std::vector<Scored> all = ScoreAll(batch);
  std::vector<double> rewards;
  double tokens = 0;
  for (const Scored& s : all) {
    // Without a proximal policy the anchor of the KL is the behaviour policy.
    double kl = 0;
    for (size_t t = 0; t < s.behav.size(); ++t) kl += s.behav[t] - s.ref[t];
    rewards.push_back(s.reward - 0.3 * kl);
    tokens += static_cast<double>(s.behav.size());
  }
  at::Tensor loss = at::zeros({}, at::kFloat);
  for (size_t i = 0; i < all.size(); ++i) {
    double others = 0;
    for (size_t j = i / 4 * 4; j < i / 4 * 4 + 4; ++j) others += j == i ? 0 : rewards[j] / 3;
    const at::Tensor x = (all[i].lp.detach() - Column(all[i].behav)).exp().clamp(0, 5);
    loss = loss - ((rewards[i] - others) * x * all[i].lp).sum() / tokens;
  }
  ASSERT_TRUE(Backward(loss).ok());
  ExpectSameUpdate(*trainer, settings, result);
}

TEST_F(AlgorithmsTest, M2poAndEntropyFactorsAreThoseOfTheWholeUpdate) {
  Settings settings = SmoothSettings();
  settings.algorithm.advantage.kind = "dr_grpo";
  settings.algorithm.loss = {.kind = "aepo",
                             .prox = "recompute",
                             .dual = std::nullopt,
                             .tis = std::nullopt,
                             .veto = std::nullopt,
                             .m2po = 0.01};
  settings.micro_batch_tokens = 20;
  const std::vector<Group> batch = RandomBatch(34);
  const std::unique_ptr<Trainer> trainer = Make(settings);
  const StepResult result = Run(*trainer, 0, batch);

  std::vector<Scored> all = ScoreAll(batch);
  struct Token {
    size_t sequence, at;
    double square;
  };
  std::vector<Token> outward;
  std::vector<std::vector<double>> advantage(all.size()), keep(all.size());
  double mean = 0, n = 0, squares = 0;
  for (const Scored& s : all) {
    for (const double h : Values(s.entropy)) mean += h, ++n;
  }
  mean /= n;
  for (const Scored& s : all) {
    for (const double h : Values(s.entropy)) squares += (h - mean) * (h - mean);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    double group = 0;
    for (size_t j = i / 4 * 4; j < i / 4 * 4 + 4; ++j) group += all[j].reward / 4;
    const std::vector<double> entropy = Values(all[i].entropy);
    for (size_t t = 0; t < entropy.size(); ++t) {
      const double h = (entropy[t] - mean) / std::sqrt(squares / (n - 1));
      advantage[i].push_back((all[i].reward - group) * (1 + 0.2 * h));
      keep[i].push_back(1);
      const double log_rho = all[i].lp_value[t] - all[i].behav[t];
      if (advantage[i][t] * log_rho > 0) outward.push_back({i, t, log_rho * log_rho});
    }
  }
  std::sort(outward.begin(), outward.end(),
            [](const Token& a, const Token& b) { return a.square > b.square; });
  size_t dropped = 0;
  for (; dropped < outward.size(); ++dropped) {
    double sum = 0;
    for (size_t j = dropped; j < outward.size(); ++j) sum += outward[j].square;
    if (sum / static_cast<double>(outward.size() - dropped) <= 0.01) break;
    keep[outward[dropped].sequence][outward[dropped].at] = 0;
  }
  ASSERT_GT(dropped, 0u);
  ASSERT_LT(dropped, outward.size());

  // The ratio to the policy of this very step is 1, so the clip does nothing.
  at::Tensor loss = at::zeros({}, at::kFloat);
  for (size_t i = 0; i < all.size(); ++i)
    loss = loss - (Column(keep[i]) * Column(advantage[i]) * all[i].lp).sum() / n;
  ASSERT_TRUE(Backward(loss).ok());
  EXPECT_NEAR(result.metrics.at("masked_m2po_tokens"), static_cast<double>(dropped) / n, 1e-9);
  EXPECT_NEAR(result.metrics.at("kept"), 1 - static_cast<double>(dropped) / n, 1e-9);
  ExpectSameUpdate(*trainer, settings, result);
}

TEST_F(AlgorithmsTest, NormalizedWeightsAreDividedByTheirMeanButKlAndEntropyAreNot) {
  Settings settings = SmoothSettings();
  settings.algorithm.advantage.kind = "dr_grpo";
  settings.algorithm.loss = {.kind = "reinforce",
                             .prox = "none",
                             .dual = std::nullopt,
                             .tis = 1.05,
                             .tis_normalize = true,
                             .veto = std::nullopt,
                             .entropy = 0.05};
  const std::vector<Group> batch = RandomBatch(35);
  const std::unique_ptr<Trainer> trainer = Make(settings);
  const StepResult result = Run(*trainer, 0, batch);

  std::vector<Scored> all = ScoreAll(batch);
  double n = 0, weights = 0;
  std::vector<std::vector<double>> weight(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t t = 0; t < all[i].behav.size(); ++t) {
      weight[i].push_back(std::min(1.05, std::exp(all[i].lp_value[t] - all[i].behav[t])));
      weights += weight[i].back(), ++n;
    }
  }
  at::Tensor loss = at::zeros({}, at::kFloat);
  for (size_t i = 0; i < all.size(); ++i) {
    double group = 0;
    for (size_t j = i / 4 * 4; j < i / 4 * 4 + 4; ++j) group += all[j].reward / 4;
    const at::Tensor u = Column(weight[i]) * (n / weights);
    loss = loss + (-(all[i].reward - group) * u * all[i].lp - 0.05 * all[i].entropy).sum() / n;
  }
  ASSERT_TRUE(Backward(loss).ok());
  EXPECT_NEAR(result.loss, loss.item<double>(), 1e-5);
  ExpectSameUpdate(*trainer, settings, result);
}

// Mean reward of the group of answer i of ScoreAll().
double GroupMean(const std::vector<Scored>& all, size_t i) {
  double mean = 0;
  for (size_t j = i / 4 * 4; j < i / 4 * 4 + 4; ++j) mean += all[j].reward / 4;
  return mean;
}

TEST_F(AlgorithmsTest, ATeacherAddsToTheAdvantageOfEachTokenHowFarThePolicyIsFromIt) {
  for (const bool pure : {false, true}) {
    SCOPED_TRACE(pure);
    Settings settings = SmoothSettings();
    settings.algorithm = FindRow(PresetRows(), "opd")->value;
    if (!pure) settings.algorithm.advantage.kind = "dr_grpo";
    settings.algorithm.distill.coef = 0.7;
    settings.algorithm.loss.tis = 1.05;
    settings.teacher = true;
    const std::vector<Group> batch = RandomBatch(36);
    const std::unique_ptr<Trainer> trainer = Make(settings);
    const StepResult result = Run(*trainer, 0, batch);

    const std::vector<Scored> all = ScoreAll(batch);
    double n = 0, kl = 0;
    at::Tensor loss = at::zeros({}, at::kFloat);
    for (size_t i = 0; i < all.size(); ++i) {
      const Scored& s = all[i];
      std::vector<double> coefficient;
      for (size_t t = 0; t < s.behav.size(); ++t) {
        const double task = pure ? 0 : s.reward - GroupMean(all, i);
        const double difference = s.lp_value[t] - s.teacher[t];
        const double u = std::min(1.05, std::exp(s.lp_value[t] - s.behav[t]));
        coefficient.push_back(-u * (task - 0.7 * difference));
        kl += difference;
        ++n;
      }
      loss = loss + (Column(coefficient) * s.lp).sum();
    }
    ASSERT_TRUE(Backward(loss / n).ok());
    EXPECT_NEAR(result.metrics.at("teacher_kl"), kl / n, 1e-5);
    EXPECT_FALSE(result.metrics.contains("teacher_left_out"));
    EXPECT_EQ(result.metrics.contains("flat_share"), !pure);
    ExpectSameUpdate(*trainer, settings, result);
    ASSERT_TRUE(slow_->Load(weights_).ok());
    slow_->ZeroGrad();
  }
}

TEST_F(AlgorithmsTest, TheKlToATeacherIsAMeanOverTokensWhateverTheAggregation) {
  Settings settings = SmoothSettings();
  settings.algorithm.advantage.kind = "dr_grpo";
  settings.algorithm.loss = {.kind = "reinforce",
                             .prox = "none",
                             .dual = std::nullopt,
                             .tis = std::nullopt,
                             .veto = std::nullopt,
                             .aggregation = "seq_mean_token_mean"};
  settings.algorithm.distill = {.kind = "full", .coef = 0.3, .trust_region = 0.02};
  settings.teacher = true;
  const std::vector<Group> batch = RandomBatch(37);
  const std::unique_ptr<Trainer> trainer = Make(settings);
  const StepResult result = Run(*trainer, 0, batch);

  const std::vector<Scored> all = ScoreAll(batch);
  double n = 0, kl = 0, left_out = 0;
  for (const Scored& s : all) n += static_cast<double>(s.behav.size());
  at::Tensor loss = at::zeros({}, at::kFloat);
  for (size_t i = 0; i < all.size(); ++i) {
    const Scored& s = all[i];
    std::vector<double> kept;
    for (size_t t = 0; t < s.behav.size(); ++t) {
      kept.push_back(std::exp(s.lp_value[t]) - std::exp(s.behav[t]) < -0.02 ? 0 : 1);
      left_out += 1 - kept.back();
      kl += s.teacher_kl[static_cast<int64_t>(t)].item<double>();
    }
    const double advantage = s.reward - GroupMean(all, i);
    loss = loss - advantage * s.lp.mean() / static_cast<double>(all.size()) +
           0.3 * (Column(kept) * s.teacher_kl).sum() / n;
  }
  ASSERT_TRUE(Backward(loss).ok());
  EXPECT_NEAR(result.loss, loss.item<double>(), 1e-5);
  EXPECT_NEAR(result.metrics.at("teacher_kl"), kl / n, 1e-5);
  EXPECT_GT(left_out, 0);
  EXPECT_LT(left_out, n);
  EXPECT_NEAR(result.metrics.at("teacher_left_out"), left_out / n, 1e-9);
  ExpectSameUpdate(*trainer, settings, result);
}

TEST_F(AlgorithmsTest, APolicyComesCloserToItsTeacherWithoutRewards) {
  Settings settings = BaseSettings();
  settings.algorithm = FindRow(PresetRows(), "opd")->value;
  settings.algorithm.distill.kind = "full";
  settings.teacher = true;
  settings.rewards = false;
  const std::unique_ptr<Trainer> trainer = Make(settings);
  const StepResult first = Run(*trainer, 0, RandomBatch(1));
  StepResult last;
  for (int64_t k = 1; k < 40; ++k) last = Run(*trainer, k, RandomBatch(1, 6, k));
  EXPECT_LT(last.metrics.at("teacher_kl"), 0.2 * first.metrics.at("teacher_kl"));

  EXPECT_EQ(first.reward_count, 0);
  EXPECT_FALSE(first.metrics.contains("reward_std"));
  EXPECT_FALSE(first.metrics.contains("flat_share"));
}

TEST_F(AlgorithmsTest, T18AnyPartitionAndOrderGivesTheSameParametersUnderEveryAlgorithm) {
  for (auto& [name, settings] : AllAlgorithms()) {
    SCOPED_TRACE(name);
    ASSERT_EQ(Validate(settings), absl::OkStatus());
    const std::unique_ptr<Trainer> whole = Make(settings);
    const StepResult expected = Run(*whole, 0, RandomBatch(2));
    for (const uint32_t limit : {1u, 9u, 40u}) {
      settings.micro_batch_tokens = limit;
      const std::unique_ptr<Trainer> parts = Make(settings);
      std::vector<Group> batch = RandomBatch(2);
      if (limit == 9) std::reverse(batch.begin(), batch.end());
      const StepResult result = Run(*parts, 0, std::move(batch));
      EXPECT_NEAR(result.loss, expected.loss, 1e-5) << limit;
      EXPECT_NEAR(result.grad_norm, expected.grad_norm, 1e-4 * expected.grad_norm + 1e-9) << limit;
      EXPECT_LE(MaxDifference(*parts->Weights(), *whole->Weights()), 2e-5) << limit;
      if (!HasCritic(settings)) continue;
      EXPECT_LE(MaxDifference(CriticOf(*parts), CriticOf(*whole)), 2e-5) << limit;
    }
  }
}

TEST_F(AlgorithmsTest, T20StreamedGroupsGiveTheParametersOfTheWholeBatchUnderEveryAlgorithm) {
  int streamed = 0;
  for (auto& [name, settings] : AllAlgorithms()) {
    settings.max_staleness = 0;
    settings.stream = true;
    if (!Streams(settings)) continue;
    SCOPED_TRACE(name);
    ++streamed;
    const std::unique_ptr<Trainer> slices = Make(settings);
    for (Group& group : RandomBatch(2)) {
      std::vector<Group> slice;
      slice.push_back(std::move(group));
      ASSERT_TRUE(slices->Add(0, std::move(slice)).ok());
    }
    const StepResult result = *slices->Finish(0);
    settings.stream = false;
    const std::unique_ptr<Trainer> whole = Make(settings);
    const StepResult expected = Run(*whole, 0, RandomBatch(2));
    EXPECT_NEAR(result.loss, expected.loss, 1e-5);
    EXPECT_LE(MaxDifference(*slices->Weights(), *whole->Weights()), 2e-5);
  }
  EXPECT_GE(streamed, 10);
}

TEST_F(AlgorithmsTest, T09WhatIsNotTrainedChangesNoBitUnderEveryAlgorithm) {
  for (auto& [name, settings] : AllAlgorithms()) {
    SCOPED_TRACE(name);
    std::vector<TensorSet> weights;
    for (const float filler : {0.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
      std::vector<Group> batch = RandomBatch(6);
      for (Group& group : batch) {
        for (Trajectory& t : group.members) {
          for (size_t i = 0; i < t.mask.size(); ++i) {
            if (!t.mask[i]) t.logprobs[i] = filler;
          }
        }
      }
      const std::unique_ptr<Trainer> trainer = Make(settings);
      Run(*trainer, 0, std::move(batch));
      weights.push_back(*trainer->Weights());
    }
    EXPECT_TRUE(SameBits(weights[0], weights[1]));
    EXPECT_TRUE(SameBits(weights[0], weights[2]));
  }
}

TEST_F(AlgorithmsTest, T24ARunUnderEveryPresetGoesOnFromACheckpointBitForBit) {
  std::vector<std::pair<std::string, Settings>> all = AllAlgorithms();
  Settings ewma = BaseSettings();
  ewma.algorithm.loss.prox = "ewma";
  ewma.minibatches = 2;
  all.emplace_back("prox ewma", ewma);
  for (const auto& [name, settings] : all) {
    SCOPED_TRACE(name);
    const std::unique_ptr<Trainer> whole = Make(settings);
    for (int64_t k = 0; k < 4; ++k) Run(*whole, k, RandomBatch(20 + k, 6, k));

    const std::unique_ptr<Trainer> first = Make(settings);
    for (int64_t k = 0; k < 2; ++k) Run(*first, k, RandomBatch(20 + k, 6, k));
    const Checkpoint found = WriteAndRead(*first, {});
    const std::unique_ptr<Trainer> second = Make(settings);
    GoOnFrom(found, *second);
    for (int64_t k = 2; k < 4; ++k) Run(*second, k, RandomBatch(20 + k, 6, k));
    EXPECT_TRUE(SameBits(*second->Weights(), *whole->Weights()));
    EXPECT_TRUE(SameBits(MomentsOf(*second), MomentsOf(*whole)));
    EXPECT_EQ(second->reward_kl(), whole->reward_kl());
    EXPECT_EQ(second->critic_updates(), whole->critic_updates());
    if (!HasCritic(settings)) continue;
    EXPECT_TRUE(SameBits(CriticOf(*second), CriticOf(*whole)));
    EXPECT_TRUE(SameBits(CriticMomentsOf(*second), CriticMomentsOf(*whole)));
  }
}

TEST_F(AlgorithmsTest, TheAverageOfProxEwmaFollowsItsRecurrenceAndIsInTheCheckpoint) {
  Settings settings = BaseSettings();
  settings.algorithm.loss.prox = "ewma";
  const std::unique_ptr<Trainer> trainer = Make(settings);
  TensorSet wanted = weights_;
  double c = 1;
  for (int64_t k = 0; k < 3; ++k) {
    const StepResult result = Run(*trainer, k, RandomBatch(k + 1, 6, k));
    // The anchor lags behind the policy, even in the first update of a batch.
    if (k > 0) EXPECT_GT(result.metrics.at("kl_prox_theta_k3"), 0);
    const TensorSet now = *trainer->Weights();
    const double next = 0.889 * c + 1;
    for (size_t i = 0; i < now.size(); ++i) {
      for (size_t j = 0; j < now.as<float>(i).size(); ++j) {
        wanted.as<float>(i)[j] =
            static_cast<float>((0.889 * c * wanted.as<float>(i)[j] + now.as<float>(i)[j]) / next);
      }
    }
    c = next;
  }
  const TensorSet moments = MomentsOf(*trainer);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int64_t at = moments.Find("a." + wanted.spec(i).name);
    ASSERT_GE(at, 0) << wanted.spec(i).name;
    const auto average = moments.as<float>(at);
    for (size_t j = 0; j < average.size(); ++j)
      EXPECT_NEAR(average[j], wanted.as<float>(i)[j], 1e-6) << wanted.spec(i).name;
  }

  // A checkpoint of a job without the average cannot go on as one with it.
  settings.algorithm.loss.prox = "recompute";
  const Checkpoint without = WriteAndRead(*Make(settings), {});
  settings.algorithm.loss.prox = "ewma";
  const absl::Status status = Make(settings)->Restore(without.model, *without.optimizer, 0, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("a."));
}

TEST_F(AlgorithmsTest, T26LoglinearAnchorsEachTokenByItsOwnStaleness) {
  Settings settings = BaseSettings();
  settings.algorithm.loss.prox = "loglinear";
  settings.algorithm.loss.entropy = 0;
  const std::unique_ptr<Trainer> trainer = Make(settings);
  std::vector<Group> batch = RandomBatch(5, 3, 2);
  for (Trajectory& mixed : batch[0].members) {
    for (size_t i = 0; i < mixed.versions.size(); ++i) {
      if (mixed.mask[i]) mixed.versions[i] = i % 2 == 0 ? 2 : 0;
    }
  }
  const std::vector<Scored> all = ScoreAll(batch);
  const StepResult result = Run(*trainer, 2, batch);

  double sum = 0, n = 0;
  size_t sequence = 0;
  for (const Group& group : batch) {
    for (const Trajectory& t : group.members) {
      const Scored& s = all[sequence++];
      size_t at = 0;
      for (size_t i = 0; i < t.mask.size(); ++i) {
        if (!t.mask[i]) continue;
        const double lag = static_cast<double>(2 - t.versions[i]), alpha = lag / (lag + 1);
        sum -= alpha * (s.lp_value[at] - s.behav[at]);  // -log w
        ++at, ++n;
      }
    }
  }
  EXPECT_NEAR(result.metrics.at("kl_behav_prox_k1"), sum / n, 1e-5);
  EXPECT_GT(result.metrics.at("mixed_versions"), 0);
}

TEST_F(AlgorithmsTest, AnAnswerThatIsFilteredCountsInTheScaleOfItsGroupUnderMinimumVariance) {
  Settings settings = SmoothSettings();
  settings.algorithm = FindRow(PresetRows(), "async_vcpo")->value;
  settings.algorithm.advantage.truncated = "filter";
  const Rules rules = *ResolveRules(settings);
  std::vector<Group> batch = RandomBatch(44, 1);
  const double rewards[] = {1, 0, 0, 0};
  for (int i = 0; i < 4; ++i) {
    batch[0].members[i].reward = rewards[i];
    batch[0].members[i].truncated = i >= 2;
  }
  SequenceBuilder builder(settings, rules, 0);
  std::vector<Sequence> sequences;
  ASSERT_EQ(builder.Add(batch, &sequences), absl::OkStatus());
  ASSERT_EQ(sequences.size(), 2u);
  // The population std of all four rewards is 0.433013, and their mean 0.25.
  EXPECT_NEAR(sequences[0].advantage[0], 0.75 / 0.433013, 1e-5);
  EXPECT_NEAR(sequences[1].advantage[0], -0.25 / 0.433013, 1e-5);
}

TEST_F(AlgorithmsTest, AStepThatRejectsEveryTokenSaysWhichMaskDidIt) {
  Settings settings = BaseSettings();
  settings.algorithm.loss.entropy = 0;
  settings.algorithm.loss.k3_max = 1e-9;
  const StepResult result = Run(*Make(settings), 0, RandomBatch(8));
  EXPECT_EQ(result.skipped, "no_terms");
  EXPECT_EQ(result.metrics.at("kept"), 0);
  EXPECT_EQ(result.metrics.at("masked_k3_tokens"), 1);
}

TEST_F(AlgorithmsTest, ADifferenceBetweenTrainerAndRolloutIsOnlySaidOfFreshTokens) {
  Settings settings = BaseSettings();
  EXPECT_TRUE(Run(*Make(settings), 0, RandomBatch(9)).metrics.contains("logprob_mismatch"));
  EXPECT_FALSE(Run(*Make(settings), 1, RandomBatch(9, 6, 0)).metrics.contains("logprob_mismatch"));
  settings.algorithm.loss.prox = "loglinear";
  EXPECT_FALSE(Run(*Make(settings), 0, RandomBatch(9)).metrics.contains("logprob_mismatch"));
}

TEST_F(AlgorithmsTest, OnlyAStepWhoseTermsNeedNoOtherGroupIsStreamed) {
  Settings settings = BaseSettings();
  settings.max_staleness = 0;
  EXPECT_TRUE(Streams(settings));
  for (const char* kind :
       {"batch", "reinforce_pp", "reinforce_pp_baseline", "gae", "min_variance"}) {
    Settings other = settings;
    other.algorithm.advantage.kind = kind;
    EXPECT_FALSE(Streams(other)) << kind;
  }
  for (const char* kind : {"grpo", "maxrl", "reinforce"}) {
    Settings other = settings;
    other.algorithm.advantage.kind = kind;
    EXPECT_TRUE(Streams(other)) << kind;
  }
  Settings m2po = settings, aepo = settings, kl = settings;
  m2po.algorithm.loss.m2po = 0.04;
  aepo.algorithm.loss.kind = "aepo";
  kl.algorithm.advantage.kl = 0.1;
  Settings timed = settings;
  timed.algorithm.advantage.duration_aware = true;  // The mean is known at the end.
  for (const Settings* other : {&m2po, &aepo, &kl, &timed}) EXPECT_FALSE(Streams(*other));
  // The scale of the advantages does not multiply the teacher's part of them.
  Settings taught = settings;
  taught.teacher = true;
  EXPECT_FALSE(Streams(taught));
  taught.algorithm.advantage.kind = "grpo";
  EXPECT_TRUE(Streams(taught));
  taught.algorithm.advantage.kind = "none";
  EXPECT_TRUE(Streams(taught));
  taught.algorithm.distill.kind = "full";
  EXPECT_TRUE(Streams(taught));
  taught.algorithm.loss.aggregation = "seq_mean_token_mean";
  EXPECT_FALSE(Streams(taught));
  // The penalty of DPPO-TV does not grow with the advantages, whose scale is known late.
  Settings dppo = settings;
  dppo.algorithm.loss.kind = "dppo_tv";
  EXPECT_FALSE(Streams(dppo));
  dppo.algorithm.advantage.kind = "grpo";
  EXPECT_TRUE(Streams(dppo));
}

// Tokens of a tool lie between those of the policy. They are context for the model, nothing else.
TEST_F(AlgorithmsTest, T14TokensOfAToolChangeNeitherAdvantagesNorWhatTheLossSees) {
  for (const auto& row : AdvantageRows()) {
    SCOPED_TRACE(row.name);
    Settings settings = BaseSettings();
    settings.algorithm.advantage.kind = std::string(row.name);
    settings.algorithm.advantage.gamma = row.value.tokens == TokenRule::kReturns ? 0.9 : 1;
    if (row.value.min_variance) settings.algorithm.loss.kind = "reinforce";
    const Rules rules = *ResolveRules(settings);

    std::vector<Group> compact = RandomBatch(41, 2);
    for (Group& group : compact) {
      for (Trajectory& t : group.members) {
        for (size_t i = 2; i < t.mask.size(); ++i) {
          t.mask[i] = 1, t.versions[i] = 0;
          if (!std::isfinite(t.logprobs[i])) t.logprobs[i] = -2.5f;
          if (NeedsCritic(row.value)) t.values.push_back(0.1f * static_cast<float>(i));
        }
      }
    }
    std::vector<Group> tools = compact;
    for (Group& group : tools) {
      for (Trajectory& t : group.members) {
        t.tokens.insert(t.tokens.begin() + 3, {7, 8});
        t.mask.insert(t.mask.begin() + 3, {0, 0});
        t.logprobs.insert(t.logprobs.begin() + 3, {std::nanf(""), std::nanf("")});
        t.versions.insert(t.versions.begin() + 3, {-1, -1});
      }
    }

    std::vector<Sequence> sequences[2];
    StepCounts counts[2];
    for (int i = 0; i < 2; ++i) {
      SequenceBuilder builder(settings, rules, 0, 0.5);
      ASSERT_EQ(builder.Add(i == 0 ? compact : tools, &sequences[i]), absl::OkStatus());
      std::vector<Sequence*> all;
      for (Sequence& s : sequences[i]) all.push_back(&s);
      WhitenAdvantages(rules.advantage, all);
      counts[i] = builder.counts();
    }
    ASSERT_EQ(sequences[0].size(), sequences[1].size());
    EXPECT_EQ(counts[0].tokens, counts[1].tokens);
    for (size_t s = 0; s < sequences[0].size(); ++s) {
      EXPECT_EQ(sequences[0][s].advantage, sequences[1][s].advantage);
      EXPECT_EQ(sequences[0][s].behavior, sequences[1][s].behavior);
      EXPECT_EQ(sequences[0][s].staleness, sequences[1][s].staleness);
      EXPECT_EQ(sequences[0][s].targets, sequences[1][s].targets);
      EXPECT_EQ(sequences[0][s].weight, sequences[1][s].weight);
      EXPECT_EQ(sequences[0][s].value, sequences[1][s].value);
      EXPECT_EQ(sequences[0][s].value_target, sequences[1][s].value_target);
    }
  }
}

// A batch of step k whose tokens are of the versions k - 2 to k, in turn.
std::vector<Group> MixedBatch(uint64_t seed, int64_t k) {
  std::vector<Group> batch = RandomBatch(seed, 6, k);
  int64_t token = 0;
  for (Group& group : batch) {
    for (Trajectory& t : group.members) {
      for (size_t i = 0; i < t.mask.size(); ++i) {
        if (t.mask[i]) t.versions[i] = std::max<int64_t>(0, k - token++ % 3);
      }
    }
  }
  return batch;
}

TEST_F(AlgorithmsTest, ProxExactWeighsEachTokenByTheTrainersLogProbUnderItsOwnVersion) {
  for (const uint32_t minibatches : {1u, 2u}) {
    SCOPED_TRACE(minibatches);
    Settings settings = BaseSettings();
    settings.algorithm.advantage.kind = "dr_grpo";
    settings.algorithm.loss = {.kind = "ppo",
                               .prox = "exact",
                               .clip_high = 0.2,
                               .dual = std::nullopt,
                               .tis = 1.1,
                               .veto = std::nullopt,
                               .stale_cap = 1.05};
    settings.minibatches = minibatches;
    const std::unique_ptr<Trainer> trainer = Make(settings);
    std::vector<TensorSet> versions;
    for (int64_t k = 0; k < 3; ++k) {
      versions.push_back(*trainer->Weights());
      if (k < 2) Run(*trainer, k, RandomBatch(50 + k, 6, k));
    }
    const std::vector<Group> batch = MixedBatch(60, 2);
    // Before its first update the policy is its own anchor, so the loss of a step with one update
    // is the sum of -A u.
    const StepResult result = Run(*trainer, 2, batch);

    // The log-probs of all answers by version.
    std::vector<std::vector<Scored>> by_version;
    for (const TensorSet& version : versions) {
      ASSERT_TRUE(slow_->Load(version).ok());
      by_version.push_back(ScoreAll(batch));
    }
    double loss = 0, n = 0, capped = 0, stale_capped = 0;
    for (size_t i = 0; i < by_version[2].size(); ++i) {
      const Trajectory& answer = batch[i / 4].members[i % 4];
      const Scored& now = by_version[2][i];
      const double advantage = now.reward - GroupMean(by_version[2], i);
      size_t token = 0;
      for (size_t t = 0; t < answer.mask.size(); ++t) {
        if (!answer.mask[t]) continue;
        const double snap = by_version[answer.versions[t]][i].lp_value[token];
        const double mis = std::exp(snap - now.behav[token]);
        const double stale = std::exp(now.lp_value[token] - snap);
        loss -= advantage * std::min(mis, 1.1) * std::min(stale, 1.05);
        capped += mis > 1.1, stale_capped += stale > 1.05;
        ++token, ++n;
      }
    }
    EXPECT_GT(stale_capped, 0);
    EXPECT_EQ(result.metrics.at("w_conflated"), 0);
    EXPECT_NEAR(result.metrics.at("tis_capped"), capped / n, 1e-9);
    EXPECT_NEAR(result.metrics.at("stale_capped"), stale_capped / n, 1e-9);
    if (minibatches == 1) EXPECT_NEAR(result.loss, loss / n, 1e-5);
  }
}

TEST_F(AlgorithmsTest, ProxExactConflatesTokensOfVersionsBeforeARestartAndSaysHowMany) {
  Settings settings = BaseSettings();
  settings.algorithm.loss.prox = "exact";
  const std::unique_ptr<Trainer> first = Make(settings);
  for (int64_t k = 0; k < 3; ++k) Run(*first, k, MixedBatch(70 + k, k));
  const Checkpoint found = WriteAndRead(*first, {});
  EXPECT_EQ(Run(*first, 3, MixedBatch(73, 3)).metrics.at("w_conflated"), 0);

  const std::unique_ptr<Trainer> second = Make(settings);
  ASSERT_TRUE(
      second
          ->Restore(found.model, *found.optimizer, found.state.updates, found.state.skips_in_a_row)
          .ok());
  // Two of three tokens are of versions 1 and 2, then one of three is, then none.
  EXPECT_NEAR(Run(*second, 3, MixedBatch(73, 3)).metrics.at("w_conflated"), 2.0 / 3, 0.02);
  EXPECT_NEAR(Run(*second, 4, MixedBatch(74, 4)).metrics.at("w_conflated"), 1.0 / 3, 0.02);
  EXPECT_EQ(Run(*second, 5, MixedBatch(75, 5)).metrics.at("w_conflated"), 0);

  settings.algorithm.loss.prox = "recompute";
  EXPECT_EQ(Run(*Make(settings), 0, RandomBatch(9)).metrics.at("w_conflated"), 1);
}

TEST_F(AlgorithmsTest, TheMasksOfAJobAreMetricsAndOthersAreAbsent) {
  Settings settings = BaseSettings();
  settings.algorithm.loss.geo_high = 1.01;
  const StepResult result = Run(*Make(settings), 0, RandomBatch(7));
  EXPECT_TRUE(result.metrics.contains("masked_geo_tokens"));
  EXPECT_TRUE(result.metrics.contains("masked_veto_sequences"));
  EXPECT_FALSE(result.metrics.contains("masked_opsm_tokens"));
  EXPECT_FALSE(result.metrics.contains("masked_m2po_tokens"));
  EXPECT_LE(result.metrics.at("rho_p5"), result.metrics.at("rho_p50"));
  EXPECT_LE(result.metrics.at("rho_p50"), result.metrics.at("rho_max"));
}

}  // namespace
}  // namespace sluice::trainer
