// Policy losses and KL terms: the product against the slow formulas, in value and gradient.

#include "tests/common/algorithms/slow/losses.h"

#include "common/algorithms/distill.h"
#include "common/algorithms/kl.h"
#include "common/algorithms/losses/aepo.h"
#include "common/algorithms/losses/ppo_clip.h"
#include "common/algorithms/preference.h"
#include "common/algorithms/proximal.h"
#include "common/algorithms/value_loss.h"
#include "kernels/decoder_grad/op.h"
#include "tests/common/algorithms/kl_oracles.h"
#include "tests/common/algorithms/slow/aggregation.h"
#include "tests/common/algorithms/slow/compare.h"
#include "tests/common/algorithms/slow/random_batch.h"
#include "tests/common/algorithms/slow/scores.h"

namespace sluice::slow {
namespace {

TEST(LossFp64Test, TheSlowFormGivesTheSheetsNumbers) {
  for (const LossOracle& oracle : LossOracles()) {
    Batch f = SheetF1();
    if (!oracle.entropy.empty())
      f.advantage = AepoAdvantages(f.mask, f.entropy, f.advantage, oracle.spec.aepo_entropy);
    Matrix snap = f.behav;
    for (std::vector<double>& row : snap) {
      for (double& lp : row) lp += 0.1;
    }
    const Weights weights = oracle.spec.prox == "exact"
                                ? CorrectExact(f, snap, UsesTotalRatio(oracle.spec),
                                               SettingsOf(oracle.spec), oracle.spec.stale_cap)
                                : Correct(oracle.spec, f);
    const TokenLosses slow = PolicyLosses(oracle.spec, f, weights);
    ExpectAllClose(Select(f.mask, slow.value), oracle.value, oracle.name + " value");
    ExpectAllClose(Select(f.mask, slow.gradient), oracle.grad, oracle.name + " gradient");
    ExpectClose(TokenMean(f, slow.value), oracle.token_mean, oracle.name + " token mean");
  }

  for (const KlOracle& oracle : KlOracles()) {
    const Batch f = SheetF1();
    const TokenLosses slow = KlLosses(oracle.kind, f);
    ExpectAllClose(Select(f.mask, slow.value), oracle.value, oracle.kind);
    ExpectAllClose(Select(f.mask, slow.gradient), oracle.grad, oracle.kind + " gradient");
  }
}

TEST(LossFp64Test, T05EveryLossHasTheValueAndTheDifferenceQuotientOfItsSlowForm) {
  int tokens = 0, kept = 0, kinks = 0;
  for (const Row<LossEntry>& loss : LossRows()) {
    for (const Row<ProxMode>& prox : ProxRows()) {
      if (loss.value.behaviour_anchor && prox.value != ProxMode::kNone) continue;
      for (uint64_t seed = 0; seed < 60; ++seed) {
        SplitMix64 random(seed + 1000);
        const Batch b =
            RandomBatch(seed, {.extreme = seed % 3 == 1, .spread = seed % 2 == 0 ? 0.3 : 1.0});
        const LossSpec spec = RandomSpec(std::string(loss.name), std::string(prox.name), &random);
        const std::string what = spec.kind + " " + spec.prox + " seed " + std::to_string(seed);

        const Packed p = Pack(b);
        const Product product = RunProduct(spec, p);
        const Weights weights = Correct(spec, b);
        ExpectSameCorrection(p, product.correction, weights, RoundingOf(spec), what);
        kinks += ExpectSameLosses(p, product.value, product.grad, PolicyLosses(spec, b, weights),
                                  RoundingOf(spec), what);
        tokens += static_cast<int>(p.size());
        kept += static_cast<int>(Select(weights.k, b.theta).size());
      }
    }
  }

  // The batches exercise both sides of the masks, and nearly all tokens have a gradient.
  EXPECT_GT(kept, tokens / 4);
  EXPECT_LT(kept, tokens * 3 / 4);
  EXPECT_LT(kinks, tokens / 100);
}

TEST(LossFp64Test, T05EveryKlRowAndSftAndDpoHaveTheDifferenceQuotientsOfTheirSlowForms) {
  for (const Row<KlEntry>& row : KlRows()) {
    for (uint64_t seed = 0; seed < 100; ++seed) {
      const Batch b = RandomBatch(seed, {.extreme = seed % 3 == 1, .bad_behav = seed % 4 == 2});
      const Packed p = Pack(b);
      std::vector<float> value(p.size()), grad(p.size());
      ComputeKlLoss(row.value.function, p.Tokens(ProxMode::kNone), absl::MakeSpan(value),
                    absl::MakeSpan(grad));
      ExpectSameLosses(p, value, grad, KlLosses(std::string(row.name), b), kRounding,
                       std::string(row.name) + " seed " + std::to_string(seed));
    }
  }

  for (double lp = -12; lp <= 0; lp += 0.5) {
    EXPECT_EQ(Sft(lp).value, SftLoss(lp));
    EXPECT_NEAR(Sft(lp).grad, Slope(SftLoss, lp), 1e-8);
  }
  EXPECT_NEAR(DpoPairLoss(1.5, 0.1), 0.620957, 1e-6);
  for (double delta = -40; delta <= 40; delta += 0.7) {
    for (const double beta : {0.1, 1.0, 3.0}) {
      const auto loss = [&](double d) { return DpoPairLoss(d, beta); };
      EXPECT_NEAR(DpoLoss(delta, beta, 0).loss, loss(delta), 1e-12);
      EXPECT_NEAR(DpoLoss(delta, beta, 0).slope, Slope(loss, delta), 1e-7) << delta;
    }
  }
}

TEST(LossFp64Test, T05TheTeachersPartOfTheAdvantagesIsThatOfTheSheet) {
  for (const Row<ProxMode>& prox : ProxRows()) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const Batch b = RandomBatch(seed, {.extreme = seed % 3 == 1});
      const Packed p = Pack(b);
      PolicyTokens tokens = p.Tokens(prox.value);
      tokens.lp_teacher = p.ref;
      std::vector<float> loglinear;
      if (prox.value == ProxMode::kLoglinear) {
        loglinear = LoglinearProximal(p.theta, p.behav, p.staleness);
        tokens.lp_prox = loglinear;
      }
      const double lambda = seed % 2 == 0 ? 1 : 0.3;
      DistillSums sums;
      const std::vector<float> got = DistilledAdvantages(
          {.kind = DistillKind::kSampled, .coef = lambda}, prox.value, tokens, &sums);

      const Matrix anchor = Anchor(b, std::string(prox.name));
      for (size_t n = 0; n < p.size(); ++n) {
        const auto [i, t] = p.place[n];
        EXPECT_NEAR(got[n],
                    DistilledAdvantage(b.advantage[i][t], lambda, anchor[i][t], b.ref[i][t]), 1e-5)
            << prox.name << " seed " << seed;
      }
    }
  }
}

TEST(LossFp64Test, T05TheReverseKlHasTheValueAndTheDifferenceQuotientsOfItsSlowForm) {
  const std::vector<double> q = {std::log(0.2), std::log(0.5), std::log(0.3)};
  EXPECT_NEAR(ReverseKl({1, 0, -1}, q, 1, {0, 1, 2}), 0.516296, 1e-6);

  for (const DecoderGradOps* ops : DecoderGradOpsKinds()) {
    // The sheet's example.
    const std::vector<float> z3 = {1, 0, -1};
    std::vector<float> y3(q.begin(), q.end());
    const float lse = ops->log_sum_exp(z3.data(), 3, 1);
    const float l3 = ops->reverse_kl(z3.data(), y3.data(), 3, 1, lse, 0);
    ExpectClose(l3, 0.516296, "the sheet's KL");
    ops->reverse_kl_grad(z3.data(), y3.data(), 3, 1, lse, 0, l3, 1);
    ExpectAllClose(y3, std::vector<double>{0.456047, -0.301201, -0.154846}, "its gradient");

    for (uint64_t seed = 0; seed < 20; ++seed) {
      SplitMix64 random(seed);
      const size_t vocab = 2 + random.Below(40);
      const double temperature = 0.5 + random.Uniform();
      Logits z, y;
      std::vector<size_t> all;
      for (size_t v = 0; v < vocab; ++v) {
        z.push_back(Fp32(6 * random.Uniform() - 3));
        y.push_back(Fp32(6 * random.Uniform() - 3));
        all.push_back(v);
      }
      const std::vector<float> z32 = Floats(z);
      std::vector<float> dz = Floats(y);
      const auto n = static_cast<int64_t>(vocab);
      const float b = static_cast<float>(1 / temperature);
      const float lse_z = ops->log_sum_exp(z32.data(), n, b),
                  lse_y = ops->log_sum_exp(dz.data(), n, b);
      EXPECT_NEAR(lse_z, LogSumExp(z, temperature), 1e-5);
      const auto slow = [&](const Logits& at) { return ReverseKl(at, y, temperature, all); };
      const float l = ops->reverse_kl(z32.data(), dz.data(), n, b, lse_z, lse_y);
      EXPECT_NEAR(l, slow(z), 1e-5) << ops->name << " seed " << seed;

      ops->reverse_kl_grad(z32.data(), dz.data(), n, b, lse_z, lse_y, l, 0.5f);
      const Logits wanted = LogitGradient(slow, z);
      for (size_t v = 0; v < vocab; ++v)
        EXPECT_NEAR(dz[v], 0.5 * wanted[v], 1e-5) << ops->name << " seed " << seed;
    }
  }
}

// The policies agree, so that every ratio is 1.
Batch EqualPolicies(uint64_t seed) {
  Batch b = RandomBatch(seed);
  b.prox = b.behav = b.theta;
  return b;
}

TEST(LossFp64Test, T05TheValueLossHasTheDifferenceQuotientOfItsSlowForm) {
  ExpectClose(ValueLossOf(0.5, 0.2, 0.7525, 0.2), 0.062128, "first");
  ExpectClose(ValueLossOf(0.45, 0.5, 0.975, 0.2), 0.137812, "second");
  ExpectClose(ValueLossOf(0.9, 0.6, 1, 0.2), 0.02, "third");
  int clipped = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SplitMix64 random(seed);
    const double v = 2 * random.Uniform() - 1, old_v = v + random.Uniform() - 0.5,
                 target = 4 * random.Uniform() - 2, e = seed % 3 == 0 ? kInf : 0.2;
    if (std::abs(std::abs(v - old_v) - e) < 1e-5) continue;  // At the edge of the band.
    const auto slow = [&](double x) { return ValueLossOf(x, old_v, target, e); };
    const LossValue product = ValueLoss(v, old_v, target, e);
    EXPECT_NEAR(product.value, slow(v), 1e-12) << seed;
    EXPECT_NEAR(product.grad, Slope(slow, v), 1e-6) << seed;
    clipped += product.grad == 0;
  }
  EXPECT_GT(clipped, 100);
}

TEST(LossFp64Test, T01AtEqualPoliciesBothSidesHaveReinforcesGradient) {
  for (const Row<LossEntry>& loss : LossRows()) {
    for (const Row<ProxMode>& prox : ProxRows()) {
      for (uint64_t seed = 0; seed < 10; ++seed) {
        const Batch b = EqualPolicies(seed);
        LossSpec spec{.kind = std::string(loss.name), .prox = std::string(prox.name)};
        spec.tis_level = seed % 2 == 0 ? "token" : "sequence";
        spec.geo_low = 0.99, spec.geo_high = 1.01, spec.k3_max = 0.01, spec.opsm = 0.5;
        spec.m2po = 0.04;

        const Packed p = Pack(b);
        const Product product = RunProduct(spec, p);
        const Weights weights = Correct(spec, b);
        const TokenLosses slow = PolicyLosses(spec, b, weights);
        for (size_t n = 0; n < p.size(); ++n) {
          const auto [i, t] = p.place[n];
          EXPECT_EQ(weights.k[i][t], 1) << spec.kind;
          EXPECT_EQ(weights.u[i][t], 1) << spec.kind;
          EXPECT_NEAR(slow.gradient[i][t], -b.advantage[i][t], 1e-6) << spec.kind;
          EXPECT_NEAR(product.grad[n], slow.gradient[i][t], 1e-6) << spec.kind;
        }
      }
    }
  }
}

TEST(LossFp64Test, T02DecoupledWithoutBoundsIsTheRhoWeightedGradientOnBothSides) {
  LossSpec decoupled = Weighted(Plain("ppo", "recompute"), kInf);
  decoupled.clip_low = decoupled.clip_high = kInf;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Batch b = RandomBatch(seed);
    const Packed p = Pack(b);
    const Product product = RunProduct(decoupled, p);
    const TokenLosses slow = PolicyLosses(decoupled, b, Correct(decoupled, b));
    for (size_t n = 0; n < p.size(); ++n) {
      const auto [i, t] = p.place[n];
      const double wanted = -b.advantage[i][t] * std::exp(b.theta[i][t] - b.behav[i][t]);
      EXPECT_NEAR(slow.gradient[i][t], wanted, 1e-6) << "seed " << seed;
      EXPECT_NEAR(product.grad[n], wanted, 1e-6) << "seed " << seed;
    }
  }
}

TEST(LossFp64Test, T02SelfIsReinforceWithTheSameWeightsOnBothSides) {
  for (const char* level : {"token", "sequence"}) {
    const LossSpec self = Weighted(Plain("ppo", "self"), 1.3, level),
                   reinforce = Weighted(Plain("reinforce", "none"), 1.3, level);
    for (uint64_t seed = 0; seed < 30; ++seed) {
      const Batch b = RandomBatch(seed);
      const Packed p = Pack(b);
      const TokenLosses slow_self = PolicyLosses(self, b, Correct(self, b)),
                        slow_reinforce = PolicyLosses(reinforce, b, Correct(reinforce, b));
      const Product product = RunProduct(self, p);
      for (size_t n = 0; n < p.size(); ++n) {
        const auto [i, t] = p.place[n];
        EXPECT_NEAR(slow_self.gradient[i][t], slow_reinforce.gradient[i][t], 1e-8);
        EXPECT_NEAR(product.grad[n], slow_self.gradient[i][t], 1e-6);
      }
    }
  }
}

// Expects the same gradients of two specs on the slow side, and of the product's second.
void ExpectSameLimit(const LossSpec& a, const LossSpec& b, const Batch& batch,
                     const std::string& what) {
  const Packed p = Pack(batch);
  const TokenLosses slow_a = PolicyLosses(a, batch, Correct(a, batch)),
                    slow_b = PolicyLosses(b, batch, Correct(b, batch));
  const Product product = RunProduct(b, p);
  for (size_t n = 0; n < p.size(); ++n) {
    const auto [i, t] = p.place[n];
    if (slow_a.kink[i][t] || slow_b.kink[i][t]) continue;
    EXPECT_NEAR(slow_a.gradient[i][t], slow_b.gradient[i][t], 1e-8) << what;
    EXPECT_NEAR(product.grad[n], slow_a.gradient[i][t], 1e-6) << what;
  }
}

TEST(LossFp64Test, T03LossesThatCoincideAtTheirLimitsDoSoOnBothSides) {
  const LossSpec ppo = Plain("ppo", "recompute");
  LossSpec dual = ppo, cispo = Plain("cispo", "none"), icepop = Weighted(ppo, kInf);
  dual.dual = 1e300;
  cispo.cispo_high = kInf;
  icepop.tis_outside = "drop";

  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Batch b = RandomBatch(seed);
    Batch bypass = b;
    bypass.prox = b.behav;
    Batch single = b;  // Each sequence keeps its first token.
    for (auto& mask : single.mask) {
      const auto first = std::find(mask.begin(), mask.end(), 1);
      if (first != mask.end()) std::fill(first + 1, mask.end(), 0);
    }

    ExpectSameLimit(Weighted(ppo, 2), Plain("ppo", "none"), bypass, "bypass");
    ExpectSameLimit(ppo, Plain("gspo", "recompute"), single, "gspo");
    ExpectSameLimit(ppo, dual, b, "dual");
    ExpectSameLimit(Weighted(Plain("reinforce", "none"), kInf), cispo, b, "cispo");
    ExpectSameLimit(Weighted(ppo, kInf), icepop, b, "icepop");
  }
}

TEST(LossFp64Test, T04TheClipIsTheSlowOneOverSixDecadesOfTheRatio) {
  for (const std::optional<double> dual : {std::optional<double>(), std::optional<double>(3)}) {
    const ClipRule clip{.low = 0.2, .high = 0.28, .dual = dual.value_or(kInf)};
    for (double log10_x = -3; log10_x <= 3; log10_x += 0.01) {
      for (const double a : {1.0, -1.0, 0.3, -0.3}) {
        const double lp = log10_x * std::log(10.0);
        const TokenConstants c{.sg = lp, .anchor = 0, .advantage = a};
        const auto slow = [&](double x) { return PpoClip(x, c, 0.2, 0.28, dual); };
        bool kink = false;
        const double slope = Slope(slow, lp, &kink);
        const LossValue product =
            sluice::PpoClip({.lp_theta = lp, .lp_anchor = 0, .advantage = a}, clip);

        const double x = std::exp(lp);
        EXPECT_NEAR(product.value, slow(lp), 1e-12 * std::max(1.0, x)) << x << " " << a;
        if (kink) continue;
        EXPECT_NEAR(product.grad, slope, 1e-6 * std::max(1.0, x)) << x << " " << a;
      }
    }
  }
}

TEST(LossFp64Test, T06WithoutAdvantagesNeitherSideHasAGradient) {
  for (const Row<LossEntry>& loss : LossRows()) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      Batch b = RandomBatch(seed, {.extreme = seed % 2 == 1});
      LossSpec spec = Plain(std::string(loss.name), "none");
      spec.dppo_penalty = 0;
      Batch none = b;
      ForEachToken(b.mask, [&](size_t i, size_t t) { none.advantage[i][t] = 0; });
      for (const float g : RunProduct(spec, Pack(none)).grad) EXPECT_EQ(g, 0) << spec.kind;
      const TokenLosses slow = PolicyLosses(spec, none, Correct(spec, none));
      for (const double g : Select(b.mask, slow.gradient)) EXPECT_EQ(g, 0) << spec.kind;

      if (spec.kind != "reinforce" && spec.kind != "cispo") continue;
      Batch flipped = b;
      ForEachToken(b.mask, [&](size_t i, size_t t) { flipped.advantage[i][t] *= -1; });
      const std::vector<float> up = RunProduct(spec, Pack(b)).grad,
                               down = RunProduct(spec, Pack(flipped)).grad;
      for (size_t n = 0; n < up.size(); ++n) EXPECT_EQ(up[n], -down[n]) << spec.kind;
    }
  }
}

TEST(LossFp64Test, AepoFactorsAreTheSlowOnes) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Batch b = RandomBatch(seed);
    if (seed % 10 == 0) {
      ForEachToken(b.mask, [&](size_t i, size_t t) { b.entropy[i][t] = 0.75; });
    }
    const Packed p = Pack(b);
    const std::vector<double> factors = AepoFactors(p.entropy, 0.2);
    const Matrix slow = AepoAdvantages(b.mask, b.entropy, Like(b.mask, 1.0), 0.2);
    for (size_t n = 0; n < p.size(); ++n)
      ExpectSame(factors[n], slow[p.place[n].first][p.place[n].second], 1e-9,
                 "seed " + std::to_string(seed));
  }
}

}  // namespace
}  // namespace sluice::slow
