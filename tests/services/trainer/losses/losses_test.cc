#include "services/trainer/core/losses/losses.h"

#include <cmath>
#include <numeric>

#include <torch/torch.h>

#include "common/base/splitmix.h"
#include "tests/common/algorithms/oracle.h"

namespace sluice {
namespace {

at::Tensor Leaf(const std::vector<float>& values) {
  return torch::tensor(values).requires_grad_(true);
}
std::vector<float> Floats(const at::Tensor& t) {
  const at::Tensor c = t.contiguous();
  return {c.data_ptr<float>(), c.data_ptr<float>() + c.numel()};
}

LossSpec Ppo() {
  return {.kind = "ppo",
          .clip_high = 0.2,
          .dual = std::nullopt,
          .tis = std::nullopt,
          .veto = std::nullopt};
}

TEST(LossesTest, TermsAreSumsWithoutADenominator) {
  const F1 f;
  const at::Tensor lp = Leaf(f.theta), entropy = Leaf({0.5f, 2, 1, 1.5f, 0});
  LossSpec spec = Ppo();
  spec.kl = 0.1, spec.kl_kind = "k3", spec.entropy = 0.01;
  const LossRule rule = ResolveLoss(spec, 0).value();

  PolicyStats stats;
  const LossTerms terms =
      ComputeLossTerms(rule, lp, entropy, f.Tokens(ProxMode::kRecompute), {1, 1}, &stats);
  ExpectClose(terms.policy.item<float>() / 5, -0.451485, "policy");
  ExpectClose(terms.kl.item<float>() / 5, 0.022779, "kl");
  ExpectClose(terms.entropy.item<float>(), 5, "entropy");
  ExpectClose(stats.Metrics()->clip_high, 0.2, "clip_high");

  (terms.policy + rule.kl_coef * terms.kl - rule.entropy_coef * terms.entropy).backward();
  const std::vector<double> policy = {-1.105171, 0, -0.904837, 0.552585, 0},
                            kl = {-0.105171, 0.181269, -0.221403, 0.181269, -0.349859};
  std::vector<double> wanted;
  for (int t = 0; t < 5; ++t) wanted.push_back(policy[t] + 0.1 * kl[t]);

  ExpectAllClose(Floats(lp.grad()), wanted, "gradient");
  ExpectAllClose(Floats(entropy.grad()), std::vector<double>(5, -0.01), "entropy gradient");
}

// The numbers of section 8 of the algorithm sheet.
TEST(LossesTest, TheTermOfACriticIsTheSumOfItsTokens) {
  const at::Tensor values = Leaf({0.5f, 0.45f, 0.9f});
  ValueStats stats;
  const at::Tensor term = ValueTerm(values, {0.2f, 0.5f, 0.6f}, {0.7525f, 0.975f, 1}, 0.2, &stats);
  ExpectClose(term.item<float>() / 3, 0.073314, "value loss");
  ExpectClose(stats.loss_sum() / 3, 0.073314, "value loss");
  EXPECT_EQ(stats.tokens(), 3);
  term.backward();
  ExpectAllClose(Floats(values.grad()), std::vector<double>{0, -0.525, 0}, "gradient");

  const at::Tensor free = Leaf({0.5f, 0.45f, 0.9f});
  ValueTerm(free, {0.2f, 0.5f, 0.6f}, {0.7525f, 0.975f, 1}, std::nullopt, &stats).backward();
  ExpectAllClose(Floats(free.grad()), std::vector<double>{-0.2525, -0.525, -0.1}, "no clip");
  EXPECT_THROW(ValueTerm(values, {0.2f}, {0.7f}, 0.2, &stats), c10::Error);
}

TEST(LossesTest, SequenceWeightsMultiplyEveryTerm) {
  const F1 f;
  LossSpec spec = Ppo();
  spec.aggregation = "seq_mean_token_mean";
  const LossRule rule = ResolveLoss(spec, 0).value();
  PolicyStats stats;
  const std::vector<double> weights = {rule.aggregation.sequence_weight(3, 3),
                                       rule.aggregation.sequence_weight(2, 2)};

  const LossTerms terms =
      ComputeLossTerms(rule, Leaf(f.theta), {}, f.Tokens(ProxMode::kRecompute), weights, &stats);
  ExpectClose(terms.policy.item<float>() *
                  rule.aggregation.step_scale({.tokens = 5, .sequences = 2, .prompts = 2}, 4),
              -0.296855, "loss");
}

TEST(LossesTest, TheReportedKlCountsEveryTokenOnce) {
  const F1 f;
  LossSpec spec = Ppo();
  spec.kl = 0.1, spec.kl_kind = "k3";

  PolicyStats stats;
  const LossTerms terms =
      ComputeLossTerms(ResolveLoss(spec, 0).value(), Leaf(f.theta), {},
                       f.Tokens(ProxMode::kRecompute), {1.0 / 3, 1.0 / 2}, &stats);
  ExpectClose(terms.kl_sum / 5, 0.022779, "kl");
}

TEST(LossesTest, SftIsTheSumOfNegativeLogProbs) {
  const at::Tensor lp = Leaf(F1().theta);
  const at::Tensor term = SftTerm(lp);
  ExpectClose(term.item<float>() / 5, 1.24, "sft");
  term.backward();
  ExpectAllClose(Floats(lp.grad()), std::vector<double>(5, -1), "gradient");
}

// A second implementation of every loss, for every proximal policy and importance weight:
// l = u f(x, A), written with tensors and differentiated by autograd.
at::Tensor ByAutograd(const LossSpec& spec, const at::Tensor& lp, const F1& f) {
  const at::Tensor behav = torch::tensor(f.behav), a = torch::tensor(f.advantage);
  const at::Tensor stale = torch::tensor(f.staleness).to(at::kFloat);
  const at::Tensor prox = spec.prox == "none"   ? behav
                          : spec.prox == "self" ? lp.detach()
                          : spec.prox == "loglinear"
                              ? behav + stale / (stale + 1) * (lp.detach() - behav)
                              : torch::tensor(f.prox);

  // In PPO, x is the ratio of the current policy to prox, so the weight u is the ratio of prox to
  // behav. REINFORCE has no x, so its u is the ratio of the current policy to behav.
  const bool has_prox = spec.prox != "none" && spec.prox != "self";
  const at::Tensor numerator = has_prox && spec.kind != "reinforce" ? prox : lp.detach();

  const auto weigh = [&](const at::Tensor& log_w, double cap) {
    if (spec.tis_level == "token") return log_w.exp().clamp_max(cap);
    return torch::cat({log_w.slice(0, 0, 3).sum().exp().expand({3}),
                       log_w.slice(0, 3, 5).sum().exp().expand({2})})
        .clamp_max(cap);
  };
  at::Tensor u = torch::ones({5});
  if (spec.tis && spec.prox == "exact") {
    // The version of a fresh token is that of prox.
    const at::Tensor snap = torch::where(stale == 0, prox, torch::tensor(f.snap));
    u = weigh(snap - behav, *spec.tis) * weigh(numerator - snap, spec.stale_cap);
  } else if (spec.tis) {
    u = weigh(numerator - behav, *spec.tis);
  }

  if (spec.kind == "reinforce") return u * (-a * lp);
  at::Tensor x = (lp - prox).exp();
  if (spec.kind == "cispo") return u * -x.detach().clamp(spec.cispo_low, spec.cispo_high) * a * lp;
  if (spec.kind == "sapo") {
    const at::Tensor tau = torch::where(a > 0, torch::full({5}, spec.sapo_positive),
                                        torch::full({5}, spec.sapo_negative));
    return u * -a * 4 / tau * torch::sigmoid(tau * (x - 1));
  }
  if (spec.kind == "dppo_tv") {
    const at::Tensor moved = lp.detach().exp() - prox.exp();
    const at::Tensor drop =
        ((a > 0) & (moved > spec.dppo_delta)) | ((a < 0) & (moved < -spec.dppo_delta));
    return u * (torch::where(drop, torch::zeros({5}), -a * x) +
                spec.dppo_penalty * (lp - prox).square());
  }
  if (spec.kind == "gspo") {
    const at::Tensor log_x = (lp - prox).detach();
    const at::Tensor geo = torch::cat(
        {log_x.slice(0, 0, 3).mean().expand({3}), log_x.slice(0, 3, 5).mean().expand({2})});
    x = (geo + lp - lp.detach()).exp();
    return u * torch::maximum(-a * x, -a * x.clamp(1 - spec.clip_low, 1 + spec.clip_high));
  }
  if (spec.kind == "aepo") {
    // The upper bound is (1 + high) x / sg(x), so that it has a gradient where it is reached.
    const at::Tensor upper = (1 + spec.clip_high) * x / x.detach();
    const at::Tensor bounded = torch::minimum(x.clamp_min(1 - spec.clip_low), upper);
    const at::Tensor l = torch::maximum(-a * x, -a * bounded);
    return u * (spec.dual ? torch::where(a < 0, torch::minimum(l, -a * *spec.dual), l) : l);
  }
  at::Tensor l = torch::maximum(-a * x, -a * x.clamp(1 - spec.clip_low, 1 + spec.clip_high));
  if (spec.dual) l = torch::where(a < 0, torch::minimum(l, -a * *spec.dual), l);
  return u * l;
}

TEST(LossesTest, EveryRowAgreesWithAutograd) {
  for (const auto& loss : LossRows()) {
    for (const auto& prox : ProxRows()) {
      for (const auto& level : WeightRows()) {
        for (uint64_t seed = 0; seed < 10; ++seed) {
          SCOPED_TRACE(testing::Message()
                       << loss.name << " " << prox.name << " " << level.name << " seed " << seed);

          SplitMix64 random(seed);
          F1 f;
          for (auto* v : {&f.theta, &f.prox, &f.behav, &f.snap}) {
            for (float& x : *v) x = static_cast<float>(-2 * random.Uniform());
          }
          for (float& x : f.advantage) x = static_cast<float>(2 * random.Uniform() - 1);

          LossSpec spec{.kind = std::string(loss.name),
                        .prox = std::string(prox.name),
                        .dual = 2.0,
                        .tis = 1.5,
                        .tis_level = std::string(level.name),
                        .veto = std::nullopt,
                        .stale_cap = 1.2};

          const at::Tensor lp1 = Leaf(f.theta), lp2 = Leaf(f.theta);
          PolicyStats stats;
          const LossRule rule = ResolveLoss(spec, 0).value();
          const LossTerms terms =
              ComputeLossTerms(rule, lp1, {}, f.Tokens(prox.value), {1, 0.5}, &stats, f.staleness);

          const at::Tensor other =
              (ByAutograd(spec, lp2, f) * torch::tensor({1.0f, 1.0f, 1.0f, 0.5f, 0.5f})).sum();
          EXPECT_NEAR(terms.policy.item<float>(), other.item<float>(), 1e-5);

          terms.policy.backward();
          other.backward();
          EXPECT_TRUE(torch::allclose(lp1.grad(), lp2.grad(), 1e-5, 1e-6))
              << lp1.grad() << lp2.grad();
        }
      }
    }
  }
}

TEST(LossesTest, EveryKlRowThatIsALossHasAGradientHere) {
  const F1 f;
  for (const auto& row : KlRows()) {
    if (!row.value.as_loss) continue;
    LossSpec spec = Ppo();
    spec.kl = 1, spec.kl_kind = std::string(row.name);

    const at::Tensor lp = Leaf(f.theta);
    PolicyStats stats;
    ComputeLossTerms(ResolveLoss(spec, 0).value(), lp, {}, f.Tokens(ProxMode::kRecompute), {1, 1},
                     &stats)
        .kl.backward();

    for (int t = 0; t < 5; ++t) {
      const KlToken token{f.theta[t], f.ref[t], f.behav[t]};
      EXPECT_FLOAT_EQ(Floats(lp.grad())[t], static_cast<float>(row.value.function(token).grad))
          << row.name;
    }
  }
}

TEST(LossesTest, WhatLiesAtMaskedPositionsTouchesNothing) {
  const F1 f;
  const LossRule rule = ResolveLoss({.kl = 0.1, .entropy = 0.1}, 1).value();
  const at::Tensor trainable = torch::tensor(std::vector<int64_t>{1, 2, 3, 5, 7});
  std::vector<at::Tensor> grads;
  for (float filler : {0.0f, std::nanf(""), INFINITY}) {
    std::vector<float> padded(8, filler), padded_entropy(8, filler);
    for (int t = 0; t < 5; ++t)
      padded[trainable[t].item<int64_t>()] = f.theta[t],
      padded_entropy[trainable[t].item<int64_t>()] = 1;

    const at::Tensor lp = Leaf(padded), entropy = Leaf(padded_entropy);
    PolicyStats stats;
    const LossTerms terms =
        ComputeLossTerms(rule, lp.index_select(0, trainable), entropy.index_select(0, trainable),
                         f.Tokens(ProxMode::kRecompute), {1, 1}, &stats);
    (terms.policy + rule.kl_coef * terms.kl - rule.entropy_coef * terms.entropy).backward();
    EXPECT_EQ(stats.bad_policy(), 0);
    grads.push_back(torch::cat({lp.grad(), entropy.grad()}));
  }

  EXPECT_TRUE(torch::equal(grads[0], grads[1]));
  EXPECT_TRUE(torch::equal(grads[0], grads[2]));
}

TEST(LossesTest, NoTokensAndNoKeptTokensStillRunBackward) {
  const LossRule rule = ResolveLoss({.kl = 0.1, .entropy = 0.1}, 1).value();
  const std::vector<int64_t> offsets = {0, 0};
  at::Tensor lp = torch::empty({0}).requires_grad_(true);
  PolicyStats stats;
  LossTerms terms = ComputeLossTerms(rule, lp, lp, {.offsets = offsets}, {1}, &stats);
  (terms.policy + terms.kl + terms.entropy).backward();
  EXPECT_EQ(lp.grad().numel(), 0);

  F1 f;
  std::fill(f.behav.begin(), f.behav.end(), std::nanf(""));
  lp = Leaf(f.theta);
  terms =
      ComputeLossTerms(rule, lp, torch::ones({5}), f.Tokens(ProxMode::kRecompute), {1, 1}, &stats);
  terms.policy.backward();

  EXPECT_EQ(terms.policy.item<float>(), 0);
  EXPECT_THAT(Floats(lp.grad()), testing::Each(0));
  EXPECT_EQ(terms.entropy.item<float>(), 5);
}

TEST(LossesTest, ANonFinitePolicyLogProbIsReported) {
  F1 f;
  f.theta[1] = std::nanf("");
  PolicyStats stats;
  ComputeLossTerms(ResolveLoss({}, 0).value(), Leaf(f.theta), {}, f.Tokens(ProxMode::kRecompute),
                   {1, 1}, &stats);
  EXPECT_EQ(stats.bad_policy(), 1);
}

TEST(LossesTest, DisagreeingShapesThrow) {
  const F1 f;
  PolicyStats stats;
  const LossRule rule = ResolveLoss({}, 0).value();

  EXPECT_THROW(
      ComputeLossTerms(rule, Leaf(f.theta), {}, f.Tokens(ProxMode::kRecompute), {1}, &stats),
      c10::Error);
  EXPECT_THROW(
      ComputeLossTerms(rule, Leaf({1, 2}), {}, f.Tokens(ProxMode::kRecompute), {1, 1}, &stats),
      c10::Error);
}

// --- any partition and order of the sequences gives one gradient

// Nine sequences of a toy model: features [N, 4] times a matrix [4, 7] gives logits over seven
// tokens.
struct Toy {
  std::vector<int64_t> lengths = {3, 1, 4, 0, 2, 5, 2, 1, 6};
  std::vector<int64_t> groups = {0, 0, 0, 1, 1, 1, 2, 2, 2};
  at::Tensor features, targets, weights;
  std::vector<float> prox, behav, ref, advantage;

  Toy() {
    torch::manual_seed(3);
    const int64_t n = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    features = torch::randn({n, 4});
    targets = torch::randint(7, {n, 1});
    weights = torch::randn({4, 7});
    const auto noisy = [&] {
      const at::Tensor lp =
          torch::log_softmax(features.matmul(weights + 0.2 * torch::randn({4, 7})), 1)
              .gather(1, targets);
      return Floats(lp.squeeze(1));
    };
    prox = noisy(), behav = noisy(), ref = noisy();
    advantage = Floats(torch::randn({n}));
  }

  int64_t GroupTokens(int64_t group) const {
    int64_t tokens = 0;
    for (size_t i = 0; i < lengths.size(); ++i) tokens += groups[i] == group ? lengths[i] : 0;
    return tokens;
  }
};

// The gradient of the whole step with respect to the weights, with the sequences cut into
// micro-batches as listed. If `streamed`, the step's scale is applied to the sum at the end;
// otherwise to the loss of each micro-batch.
at::Tensor StepGradient(const Toy& toy, const LossRule& rule,
                        const std::vector<std::vector<int>>& micro_batches, bool streamed) {
  const at::Tensor weights = toy.weights.clone().requires_grad_(true);
  // One of the nine sequences is empty. max_response is 6.
  const double scale = rule.aggregation.step_scale({.tokens = 24, .sequences = 8, .prompts = 3}, 6);
  PolicyStats stats;
  for (const std::vector<int>& batch : micro_batches) {
    std::vector<int64_t> rows, offsets = {0};
    std::vector<double> sequence_weight;
    for (int i : batch) {
      const int64_t begin =
          std::accumulate(toy.lengths.begin(), toy.lengths.begin() + i, int64_t{0});
      for (int64_t t = 0; t < toy.lengths[i]; ++t) rows.push_back(begin + t);
      offsets.push_back(offsets.back() + toy.lengths[i]);
      sequence_weight.push_back(
          toy.lengths[i] == 0
              ? 0
              : rule.aggregation.sequence_weight(toy.lengths[i], toy.GroupTokens(toy.groups[i])));
    }

    const at::Tensor index = torch::tensor(rows, torch::kLong);
    const auto pick = [&](const std::vector<float>& all) {
      std::vector<float> out;
      for (int64_t row : rows) out.push_back(all[row]);
      return out;
    };
    const std::vector<float> prox = pick(toy.prox), behav = pick(toy.behav), ref = pick(toy.ref),
                             advantage = pick(toy.advantage);

    const at::Tensor log_p =
        torch::log_softmax(toy.features.index_select(0, index).matmul(weights), 1);
    const LossTerms terms =
        ComputeLossTerms(rule, log_p.gather(1, toy.targets.index_select(0, index)).squeeze(1),
                         -(log_p.exp() * log_p).sum(1), {offsets, {}, prox, behav, ref, advantage},
                         sequence_weight, &stats);
    ((terms.policy + rule.kl_coef * terms.kl - rule.entropy_coef * terms.entropy) *
     (streamed ? 1.0 : scale))
        .backward();
  }
  EXPECT_EQ(stats.tokens(), 24);
  return streamed ? weights.grad() * scale : weights.grad();
}

TEST(LossesTest, AnyPartitionAndOrderOfSequencesGivesOneGradient) {
  const Toy toy;
  const std::vector<std::vector<std::vector<int>>> partitions = {
      {{0, 1}, {2, 3, 4, 5}, {6, 7, 8}},
      {{8}, {7}, {6}, {5}, {4}, {3}, {2}, {1}, {0}},
      {{3}, {8, 0, 5}, {2, 7, 1, 6, 4}}};
  for (const auto& row : AggregationRows()) {
    const LossRule rule =
        ResolveLoss({.aggregation = std::string(row.name), .kl = 0.2, .entropy = 0.05}, 1).value();
    const at::Tensor whole = StepGradient(toy, rule, {{0, 1, 2, 3, 4, 5, 6, 7, 8}}, false);
    EXPECT_GT(whole.abs().max().item<float>(), 1e-3);

    for (const auto& partition : partitions) {
      for (bool streamed : {false, true}) {
        const at::Tensor parts = StepGradient(toy, rule, partition, streamed);
        EXPECT_LT((parts - whole).abs().max().item<float>(), 1e-6f)
            << row.name << (streamed ? " streamed" : "");
      }
    }
  }
}

}  // namespace
}  // namespace sluice
