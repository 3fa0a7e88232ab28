// Effective sample sizes, diagnostics and staleness: the product against the slow formulas.

#include "tests/common/algorithms/slow/statistics.h"

#include "common/algorithms/diagnostics.h"
#include "common/rl/version.h"
#include "tests/common/algorithms/slow/aggregation.h"
#include "tests/common/algorithms/slow/compare.h"
#include "tests/common/algorithms/slow/random_batch.h"

namespace sluice::slow {
namespace {

EssSum EssSumOf(const Values& log_weights) {
  EssSum sum;
  for (const double l : log_weights) sum.Add(l);
  return sum;
}

TEST(StatisticsFp64Test, TheSlowFormGivesTheSheetsNumbers) {
  ExpectClose(Ess({0.7, -0.3}), 1.648054, "ess");
  ExpectClose(EssRatio({0.7, -0.3}), 0.824027, "q");
  ExpectClose(LearningRateFactor(0.824027, 1, 0.5), 0.907759, "factor");
  ExpectClose(Ess({100, 99, 50}), 1.648054, "large weights");
  ExpectClose(Ess({std::log(2), std::log(0.5), 0, std::log(0.25)}), 2.647059, "four weights");

  const Batch f = SheetF1();
  const Matrix w = Difference(f.mask, f.prox, f.behav), rho = Difference(f.mask, f.theta, f.behav),
               r = Difference(f.mask, f.theta, f.prox);
  const Values log_w = Select(f.mask, w), log_rho = Select(f.mask, rho), log_r = Select(f.mask, r);
  ExpectClose(MeanK1(log_w), -0.08, "kl_behav_prox k1");
  ExpectClose(MeanK3(log_w), 0.025691, "kl_behav_prox k3");
  ExpectClose(MeanK3(log_rho), 0.023246, "kl_behav_theta k3");
  ExpectClose(MeanK3(log_r), 0.042707, "kl_prox_theta k3");
  ExpectClose(MeanWeightedK3(log_w, log_r), 0.048673, "kl_prox_theta weighted k3");
  ExpectClose(Chi2(log_rho), 0.258964, "chi2_token");
  ExpectClose(Chi2(SequenceSums(f.mask, rho)), 1.302006, "chi2_seq");
  ExpectClose(EssRatio(log_rho), 0.966789, "ess_tok");
  ExpectClose(EssRatio(SequenceSums(f.mask, w)), 0.990164, "ess of w");
  ExpectClose(Mean(AbsDiff(log_w)), 0.2, "absdiff");
  ExpectClose(LogPplGap(f.mask, f.behav, f.prox), -0.075, "log-ppl gap");
  const double quantiles[][2] = {
      {0.01, 0.822012}, {0.05, 0.835270}, {0.5, 1.221403}, {0.95, 1.323130}, {0.99, 1.344470}};
  for (const auto& [q, wanted] : quantiles)
    ExpectClose(std::exp(Quantile(log_rho, q)), wanted, "rho quantile");
}

TEST(StatisticsFp64Test, T17EssAndItsFactorAreTheSlowOnesWhateverTheScaleOfTheWeights) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SplitMix64 random(seed);
    const double spread = seed % 3 == 0 ? 1000 : 3, shift = 2000 * random.Uniform() - 1000;
    Values log_weights, shifted;
    for (uint64_t n = 1 + random.Below(30); n > 0; --n) {
      log_weights.push_back(spread * random.Uniform());
      shifted.push_back(log_weights.back() + shift);
    }

    const double slow = Ess(log_weights);
    ExpectSame(EssSumOf(log_weights).Ess(), slow, 1e-9, "seed " + std::to_string(seed));
    ExpectSame(EssSumOf(shifted).Ess(), slow, 1e-9, "seed " + std::to_string(seed));
    ExpectSame(EssSumOf(shifted).Ratio(), EssRatio(log_weights), 1e-9, "ratio");
    EXPECT_GE(slow, 1 - 1e-12);
    EXPECT_LE(slow, static_cast<double>(log_weights.size()) + 1e-9);

    const double q = EssRatio(log_weights), base = 0.1 + random.Uniform();
    for (const double power : {0.5, 1.0})
      ExpectSame(EssFactor(q, base, power), LearningRateFactor(q, base, power), 1e-12, "factor");
  }
}

// The batch as the diagnostics see it: tokens whose log-probs are not finite enter no mean, and
// without a proximal policy theta takes its place.
struct Seen {
  Flags mask;
  Matrix w, rho, r;
};
Seen SeenBy(const Batch& b, const std::string& prox) {
  Seen seen{.mask = b.mask};
  ForEachToken(b.mask, [&](size_t i, size_t t) { seen.mask[i][t] = std::isfinite(b.behav[i][t]); });
  const Matrix& anchor = prox == "recompute" ? b.prox : b.theta;
  seen.w = Difference(seen.mask, anchor, b.behav);
  seen.rho = Difference(seen.mask, b.theta, b.behav);
  seen.r = Difference(seen.mask, b.theta, anchor);
  return seen;
}

void ExpectSameRatioMetrics(const PolicyMetrics& m, const Batch& b, const std::string& prox) {
  const Seen seen = SeenBy(b, prox);
  const Values w = Select(seen.mask, seen.w), rho = Select(seen.mask, seen.rho),
               r = Select(seen.mask, seen.r);
  const Values rho_seq = SequenceSums(seen.mask, seen.rho), w_seq = SequenceSums(seen.mask, seen.w);
  const Values prob_diff = ProbDiff(Select(seen.mask, prox == "recompute" ? b.prox : b.theta),
                                    Select(seen.mask, b.behav));
  const std::pair<double, double> pairs[] = {
      {m.kl_behav_prox_k1, MeanK1(w)},
      {m.kl_behav_prox_k3, MeanK3(w)},
      {m.kl_behav_theta_k1, MeanK1(rho)},
      {m.kl_behav_theta_k3, MeanK3(rho)},
      {m.kl_prox_theta_k1, MeanK1(r)},
      {m.kl_prox_theta_k3, MeanK3(r)},
      {m.kl_prox_theta_k3_is, MeanWeightedK3(w, r)},
      {m.chi2_token, Chi2(rho)},
      {m.chi2_seq, Chi2(rho_seq)},
      {m.ess_seq, EssRatio(rho_seq)},
      {m.ess_token, EssRatio(rho)},
      {m.ess_seq_w, EssRatio(w_seq)},
      {m.absdiff_mean, Mean(AbsDiff(w))},
      {m.absdiff_max, Largest(AbsDiff(w))},
      {m.prob_diff_mean, Mean(prob_diff)},
      {m.prob_diff_max, Largest(prob_diff)},
      {m.log_ppl_gap, LogPplGap(seen.mask, b.behav, prox == "recompute" ? b.prox : b.theta)}};
  int n = 0;
  for (const auto& [product, slow] : pairs)
    ExpectSame(product, slow, 1e-9, "metric " + std::to_string(n++));
}

void ExpectSameOtherMetrics(const PolicyMetrics& m, const Batch& b, const LossSpec& spec,
                            const ClipRule& clip) {
  const Seen seen = SeenBy(b, spec.prox);
  const double tokens = TokensOfStep(b.mask);
  // A token whose x is not defined is at no bound.
  Values x = Select(b.mask, Difference(b.mask, b.theta, Anchor(b, spec.prox)));
  for (double& v : x) v = std::isnan(v) ? kNan : std::exp(Clamp20(v));
  const Clipped clipped =
      CountAtBounds(x, Select(b.mask, b.advantage), clip.low, clip.high, clip.dual);
  const Values advantage = Select(seen.mask, b.advantage);
  const Weights weights = Correct(spec, b);

  EXPECT_EQ(m.tokens, static_cast<int64_t>(tokens));
  EXPECT_EQ(m.sequences, static_cast<int64_t>(SequencesOfStep(b.mask)));
  EXPECT_NEAR(m.clip_high, static_cast<double>(clipped.high) / tokens, 1e-12);
  EXPECT_NEAR(m.clip_low, static_cast<double>(clipped.low) / tokens, 1e-12);
  EXPECT_NEAR(m.clip_dual, static_cast<double>(clipped.dual) / tokens, 1e-12);
  EXPECT_NEAR(m.kept, static_cast<double>(Select(weights.k, b.theta).size()) / tokens, 1e-12);
  const Matrix log_w = LogWeights(b, spec.prox, UsesTotalRatio(spec));
  EXPECT_NEAR(m.capped, CountCapped(seen.mask, log_w, SettingsOf(spec)) / tokens, 1e-12);
  ExpectSame(m.advantage_mean, Mean(advantage), 1e-9, "advantage mean");
  ExpectSame(m.advantage_std, advantage.size() < 2 ? 0 : Std(advantage, 1), 1e-7, "advantage std");
  if (spec.tis) {
    ExpectSame(m.weight_mean, MeanWeight(b.mask, weights.u, spec.tis_level), 1e-6, "weight mean");
  }
}

TEST(StatisticsFp64Test, TheMetricsOfAStepAreTheSlowOnesHoweverItIsDivided) {
  const ClipRule clip{.low = 0.2, .high = 0.28, .dual = 1.5};
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Batch b = RandomBatch(seed, {.extreme = seed % 3 == 1, .bad_behav = seed % 4 == 2});
    LossSpec spec = Plain("reinforce", seed % 2 == 0 ? "recompute" : "none");
    if (spec.prox == "recompute") spec = Weighted(Plain("ppo", spec.prox), 1.2);
    spec.veto = seed % 5 == 0 ? std::optional<double>(0.8) : std::nullopt;
    const ProxMode mode = FindRow(ProxRows(), spec.prox)->value;

    // A sequence is a micro-batch of its own.
    PolicyStats whole, divided;
    const auto add = [&](const Batch& part, PolicyStats* stats) {
      const Packed p = Pack(part);
      stats->Add(p.Tokens(mode), RunProduct(spec, p).correction,
                 CountClipped(clip, mode, p.Tokens(mode)));
    };
    add(b, &whole);
    for (size_t i = 0; i < b.sequences(); ++i) {
      Batch part = b;
      for (size_t j = 0; j < b.sequences(); ++j) {
        if (j != i) part.mask[j].assign(part.mask[j].size(), 0);
      }
      PolicyStats stats;
      add(part, &stats);
      divided.Merge(stats);
    }

    const bool seen = TokensOfStep(SeenBy(b, spec.prox).mask) > 0;
    ASSERT_EQ(whole.Metrics().has_value(), seen);
    ASSERT_EQ(divided.Metrics().has_value(), seen);
    if (!seen) continue;
    for (const PolicyStats* stats : {&whole, &divided}) {
      ExpectSameRatioMetrics(*stats->Metrics(), b, spec.prox);
      ExpectSameOtherMetrics(*stats->Metrics(), b, spec, clip);
    }

    // Of the histogram's quantiles, the extremes are exact.
    const Values rho = Select(SeenBy(b, spec.prox).mask, SeenBy(b, spec.prox).rho);
    for (const double q : {0.0, 1.0})
      ExpectSame(std::log(whole.quantiles().rho.Quantile(q)), Quantile(rho, q), 1e-9, "extreme");
  }
}

TEST(StatisticsFp64Test, T01EqualPoliciesHaveNoDivergenceOnEitherSide) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Batch b = RandomBatch(seed);
    if (TokensOfStep(b.mask) == 0) continue;
    b.prox = b.behav = b.theta;
    const Packed p = Pack(b);
    PolicyStats stats;
    stats.Add(p.Tokens(ProxMode::kRecompute), RunProduct(Plain("ppo", "recompute"), p).correction,
              {});
    ExpectSameRatioMetrics(*stats.Metrics(), b, "recompute");
    EXPECT_EQ(Chi2(Select(b.mask, Difference(b.mask, b.theta, b.behav))), 0);
    EXPECT_EQ(EssRatio(SequenceSums(b.mask, Difference(b.mask, b.theta, b.behav))), 1);
  }
}

// The part of each mask that the metrics name, from a spec with that mask alone.
TEST(StatisticsFp64Test, T12EachMaskCountsWhatItsSlowRuleRejects) {
  struct Alone {
    Mask mask;
    void (*set)(LossSpec&);
  };
  const Alone masks[] = {
      {Mask::kWeight, [](LossSpec& s) { s.tis = 1.1, s.tis_low = 0.8, s.tis_outside = "drop"; }},
      {Mask::kVeto, [](LossSpec& s) { s.veto = 0.7, s.veto_high = 1.4; }},
      {Mask::kGeo, [](LossSpec& s) { s.geo_low = 0.9, s.geo_high = 1.1; }},
      {Mask::kK3, [](LossSpec& s) { s.k3_max = 0.03; }},
      {Mask::kOpsm, [](LossSpec& s) { s.opsm = 0.02; }},
  };
  // All of them together, of which each counts its own.
  LossSpec together = Plain("ppo", "recompute");
  for (const Alone& alone : masks) alone.set(together);

  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Batch b = RandomBatch(seed);
    const Correction product = RunProduct(together, Pack(b)).correction;
    for (const Alone& alone : masks) {
      LossSpec spec = Plain("ppo", "recompute");
      alone.set(spec);
      const Flags kept = Correct(spec, b).k;
      int64_t tokens = 0, sequences = 0;
      for (size_t i = 0; i < b.sequences(); ++i) {
        const auto rejected = static_cast<int64_t>(TokensOf(b.mask, i) - TokensOf(kept, i));
        tokens += rejected;
        sequences += rejected > 0;
      }
      EXPECT_EQ(product.by(alone.mask).tokens, tokens) << MaskName(alone.mask) << " seed " << seed;
      EXPECT_EQ(product.by(alone.mask).sequences, sequences) << MaskName(alone.mask);
    }
  }
}

TEST(StatisticsFp64Test, T26StalenessOfMixedVersionsIsTheSlowCountAndItsQuantilesAreExact) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SplitMix64 random(seed);
    StalenessStats stats;
    Values staleness;
    double mixed = 0, sequences = 0;
    for (uint64_t n = 1 + random.Below(6); n > 0; --n) {
      std::vector<VersionRun> runs;
      int64_t version = static_cast<int64_t>(random.Below(5));
      for (uint64_t run = random.Below(4); run > 0; --run) {
        const auto length = static_cast<int64_t>(1 + random.Below(5));
        runs.push_back({{1, version}, static_cast<uint32_t>(length)});
        staleness.insert(staleness.end(), length, static_cast<double>(12 - version));
        version += 1 + static_cast<int64_t>(random.Below(2));
      }
      stats.Add(runs, 12);
      sequences += !runs.empty();
      mixed += runs.size() > 1;
    }
    if (staleness.empty()) continue;

    EXPECT_EQ(stats.tokens(), static_cast<int64_t>(staleness.size()));
    EXPECT_NEAR(stats.mean(), Mean(staleness), 1e-12) << seed;
    EXPECT_EQ(static_cast<double>(stats.max()), Largest(staleness)) << seed;
    EXPECT_NEAR(stats.mixed_fraction(), mixed / sequences, 1e-12) << seed;
    for (const double q : {0.0, 0.25, 0.5, 0.95, 1.0})
      EXPECT_NEAR(stats.Quantile(q), Quantile(staleness, q), 1e-12) << seed << " " << q;
  }
}

TEST(StatisticsFp64Test, T26LoglinearInterpolatesByTheStalenessOfEachTokenAsTheSlowFormDoes) {
  const Batch f = SheetF1();
  ExpectAllClose(Select(f.mask, LoglinearProx(f)),
                 std::vector<double>{-0.566667, -1.35, -2.2, -0.85, -1.5}, "lp_prox");
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Batch b = RandomBatch(seed, {.extreme = seed % 3 == 1, .bad_behav = seed % 4 == 2});
    const Packed p = Pack(b);
    const std::vector<float> product = LoglinearProximal(p.theta, p.behav, p.staleness);
    const Values slow = Select(b.mask, LoglinearProx(b));
    for (size_t n = 0; n < slow.size(); ++n)
      EXPECT_NEAR(product[n], slow[n], 6e-8 * std::max(1.0, std::abs(slow[n]))) << seed;
  }
}

}  // namespace
}  // namespace sluice::slow
