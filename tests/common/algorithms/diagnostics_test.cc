#include "common/algorithms/diagnostics.h"

#include <cmath>

#include "tests/common/algorithms/oracle.h"

namespace sluice {
namespace {

EssSum EssOf(const std::vector<double>& log_weights) {
  EssSum ess;
  for (double w : log_weights) ess.Add(w);
  return ess;
}

TEST(EssTest, GivesTheWorkedNumbers) {
  const EssSum f1 = EssOf({0.7, -0.3});
  ExpectClose(f1.Ess(), 1.648054, "ess");
  ExpectClose(f1.Ratio(), 0.824027, "ratio");
  ExpectClose(EssFactor(f1.Ratio()), 0.907759, "factor");

  const EssSum four = EssOf({std::log(2), std::log(0.5), std::log(1), std::log(0.25)});
  ExpectClose(four.Ess(), 2.647059, "ess");
  ExpectClose(four.Ratio(), 0.661765, "ratio");
  ExpectClose(EssFactor(four.Ratio()), 0.813489, "factor");
  ExpectClose(EssOf({100, 99, 50}).Ess(), 1.648054, "large log-weights");
  EXPECT_EQ(EssOf({3, 3, 3, 3}).Ratio(), 1);
}

TEST(EssTest, T17IsFreeOfScaleBoundedAndMergesInAnyOrder) {
  const std::vector<double> weights = {0.3, -2, 1.5, 0, -7, 0.2};
  for (double shift : {-900.0, -1.0, 0.0, 1.0, 900.0}) {
    EssSum ess, left, right;
    for (size_t i = 0; i < weights.size(); ++i) {
      ess.Add(weights[i] + shift);
      (i % 2 ? left : right).Add(weights[i] + shift);
    }

    EXPECT_NEAR(ess.Ess(), EssOf(weights).Ess(), 1e-9) << shift;
    left.Merge(right);
    left.Merge(EssSum());
    EXPECT_NEAR(left.Ess(), ess.Ess(), 1e-9) << shift;

    EssSum empty;
    empty.Merge(left);
    EXPECT_NEAR(empty.Ess(), ess.Ess(), 1e-9) << shift;
  }

  EXPECT_NEAR(EssOf({0, 800}).Ess(), 1, 1e-12);
  EXPECT_LE(EssFactor(1.0, 0.5), 1);
}

PolicyStats StatsOf(const F1& f, const ClipRule& clip = {.low = 0.2, .high = 0.2}) {
  const PolicyTokens tokens = f.Tokens(ProxMode::kRecompute);
  PolicyStats stats;
  stats.Add(tokens, ComputeCorrection({.level = WeightLevel::kToken, .cap = 1.2}, tokens),
            CountClipped(clip, ProxMode::kRecompute, tokens));
  return stats;
}

void ExpectF1(const PolicyMetrics& m) {
  EXPECT_EQ(m.tokens, 5);
  EXPECT_EQ(m.sequences, 2);
  ExpectClose(m.kl_behav_prox_k1, -0.08, "kl_behav_prox_k1");
  ExpectClose(m.kl_behav_prox_k3, 0.025691, "kl_behav_prox_k3");
  ExpectClose(m.kl_behav_theta_k1, -0.08, "kl_behav_theta_k1");
  ExpectClose(m.kl_behav_theta_k3, 0.023246, "kl_behav_theta_k3");
  ExpectClose(m.kl_prox_theta_k1, 0, "kl_prox_theta_k1");
  ExpectClose(m.kl_prox_theta_k3, 0.042707, "kl_prox_theta_k3");
  ExpectClose(m.kl_prox_theta_k3_is, 0.048673, "kl_prox_theta_k3_is");
  ExpectClose(m.chi2_token, 0.258964, "chi2_token");
  ExpectClose(m.chi2_seq, 1.302006, "chi2_seq");
  ExpectClose(m.ess_seq, 0.824027, "ess_seq");
  ExpectClose(m.ess_token, 0.966789, "ess_token");
  ExpectClose(m.ess_seq_w, 0.990164, "ess_seq_w");
  ExpectClose(m.absdiff_mean, 0.2, "absdiff_mean");
  ExpectClose(m.absdiff_max, 0.3, "absdiff_max");
  ExpectClose(m.log_ppl_gap, -0.075, "log_ppl_gap");
  ExpectClose(m.clip_high, 0.2, "clip_high");
  ExpectClose(m.clip_low, 0.2, "clip_low");
  EXPECT_EQ(m.clip_dual, 0);
  EXPECT_EQ(m.kept, 1);
  ExpectClose(m.capped, 0.4, "capped");
  ExpectClose(m.advantage_mean, 0.4, "advantage_mean");
  ExpectClose(m.advantage_std, std::sqrt(0.675), "advantage_std");
}

TEST(PolicyStatsTest, GivesTheWorkedNumbers) { ExpectF1(*StatsOf(F1()).Metrics()); }

TEST(PolicyStatsTest, MicroBatchesMerge) {
  F1 a, b;
  const auto cut = [](F1* f, size_t begin, size_t end) {
    for (auto* v : {&f->theta, &f->prox, &f->behav, &f->ref, &f->advantage})
      *v = std::vector<float>(v->begin() + begin, v->begin() + end);
    f->offsets = {0, static_cast<int64_t>(end - begin)};
  };

  cut(&a, 0, 3);
  cut(&b, 3, 5);
  PolicyStats stats = StatsOf(a);
  stats.Merge(StatsOf(b));
  stats.Merge(PolicyStats());
  ExpectF1(*stats.Metrics());
}

TEST(PolicyStatsTest, T01EqualPoliciesHaveNoDivergence) {
  F1 f;
  f.prox = f.behav = f.theta;
  const PolicyMetrics m = *StatsOf(f).Metrics();
  for (double zero : {m.kl_behav_prox_k1, m.kl_behav_prox_k3, m.kl_behav_theta_k1,
                      m.kl_behav_theta_k3, m.kl_prox_theta_k1, m.kl_prox_theta_k3, m.chi2_token,
                      m.chi2_seq, m.absdiff_max, m.clip_high, m.clip_low}) {
    EXPECT_EQ(zero, 0);
  }

  EXPECT_EQ(m.ess_seq, 1);
  EXPECT_EQ(m.ess_token, 1);
}

TEST(PolicyStatsTest, NoTokensGiveNoMetrics) {
  EXPECT_FALSE(PolicyStats().Metrics().has_value());
  const std::vector<int64_t> offsets = {0, 0};
  PolicyStats stats;
  stats.Add({.offsets = offsets}, {}, {});
  EXPECT_FALSE(stats.Metrics().has_value());
}

TEST(PolicyStatsTest, LogProbsThatAreNotFiniteAreCountedAndEnterNoMean) {
  F1 f;
  f.behav[0] = std::nanf("");
  f.theta[4] = std::nanf("");
  const PolicyStats stats = StatsOf(f);

  EXPECT_EQ(stats.bad_behav(), 1);
  EXPECT_EQ(stats.bad_policy(), 1);
  EXPECT_EQ(stats.tokens(), 5);

  const PolicyMetrics m = *stats.Metrics();
  EXPECT_TRUE(std::isfinite(m.kl_behav_theta_k3) && std::isfinite(m.ess_seq) &&
              std::isfinite(m.chi2_seq));
  ExpectClose(m.kept, 0.8, "kept");
}

TEST(StalenessTest, CountsTokensByVersionsBehind) {
  const std::vector<VersionRun> mixed = {{{1, 5}, 1}, {{1, 6}, 1}, {{1, 7}, 1}},
                                one = {{{1, 6}, 2}}, none = {};
  StalenessStats stats, other;
  stats.Add(mixed, 7);
  other.Add(one, 7);
  other.Add(none, 7);
  stats.Merge(other);

  EXPECT_THAT(stats.histogram(),
              testing::ElementsAre(testing::Pair(0, 1), testing::Pair(1, 3), testing::Pair(2, 1)));
  EXPECT_EQ(stats.max(), 2);
  EXPECT_EQ(stats.tokens(), 5);
  EXPECT_DOUBLE_EQ(stats.mean(), 1);
  EXPECT_DOUBLE_EQ(stats.mixed_fraction(), 0.5);
  EXPECT_DOUBLE_EQ(stats.Quantile(0.5), 1);

  // Rank 3.8, counted from 0, of 0 1 1 1 2 lies between 1 and 2.
  EXPECT_DOUBLE_EQ(stats.Quantile(0.95), 1.8);
  EXPECT_EQ(StalenessStats().mean(), 0);
}

}  // namespace
}  // namespace sluice
