// What is masked, rejected, weighted and averaged: the product against the slow formulas.

#include "tests/common/algorithms/slow/aggregation.h"
#include "tests/common/algorithms/slow/compare.h"
#include "tests/common/algorithms/slow/random_batch.h"

namespace sluice::slow {
namespace {

// The same batch with another value wherever the mask is 0.
Batch Fill(Batch b, double filler) {
  for (Matrix* m : {&b.theta, &b.prox, &b.behav, &b.ref, &b.advantage, &b.entropy}) {
    for (size_t i = 0; i < b.sequences(); ++i) {
      for (size_t t = 0; t < b.positions(i); ++t) {
        if (!b.mask[i][t]) (*m)[i][t] = filler;
      }
    }
  }
  return b;
}

TEST(MaskFp64Test, T09WhatIsWrittenWhereTheMaskIs0ChangesNothingOnEitherSide) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    for (const Row<LossEntry>& loss : LossRows()) {
      SplitMix64 random(seed);
      const LossSpec spec = RandomSpec(std::string(loss.name), "none", &random);
      const Batch b = RandomBatch(seed), zeros = Fill(b, 0), infinite = Fill(b, INFINITY);
      const TokenLosses slow = PolicyLosses(spec, zeros, Correct(spec, zeros));
      EXPECT_EQ(PolicyLosses(spec, b, Correct(spec, b)).gradient, slow.gradient) << loss.name;
      EXPECT_EQ(PolicyLosses(spec, infinite, Correct(spec, infinite)).gradient, slow.gradient);

      const Packed p = Pack(infinite);
      const Product product = RunProduct(spec, p);
      ExpectSameLosses(p, product.value, product.grad, slow, kRounding, spec.kind);
    }
  }
}

// The same batch with a row without tokens in front, and two columns of padding behind.
Batch Padded(Batch b) {
  for (Matrix* m : {&b.theta, &b.prox, &b.behav, &b.ref, &b.advantage, &b.entropy}) {
    for (auto& row : *m) row.insert(row.end(), 2, kNan);
    m->insert(m->begin(), {kNan});
  }
  for (auto& row : b.mask) row.insert(row.end(), 2, 0);
  for (auto& row : b.staleness) row.insert(row.end(), 2, -1);
  b.mask.insert(b.mask.begin(), std::vector<uint8_t>{0});
  b.staleness.insert(b.staleness.begin(), std::vector<int>{-1});
  b.group.insert(b.group.begin(), 1000);
  return b;
}

TEST(MaskFp64Test, T10EmptySequencesAndPaddingChangeNothingOnEitherSide) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Batch b = RandomBatch(seed), padded = Padded(b);
    if (TokensOfStep(b.mask) == 0) continue;
    for (const Row<LossEntry>& loss : LossRows()) {
      SplitMix64 random(seed);
      const LossSpec spec = RandomSpec(std::string(loss.name), "none", &random);
      EXPECT_EQ(RunProduct(spec, Pack(padded)).grad, RunProduct(spec, Pack(b)).grad) << loss.name;
      const TokenLosses wide = PolicyLosses(spec, padded, Correct(spec, padded)),
                        narrow = PolicyLosses(spec, b, Correct(spec, b));
      EXPECT_EQ(Select(padded.mask, wide.gradient), Select(b.mask, narrow.gradient));
      for (const Row<Aggregation>& row : AggregationRows()) {
        const std::string mode(row.name);
        EXPECT_EQ(Aggregate(mode, padded, wide.value, 8), Aggregate(mode, b, narrow.value, 8))
            << mode;
      }
    }
  }
}

TEST(MaskFp64Test, T12ABadBehaviourLogProbIsLeftOutAlikeOnBothSides) {
  for (const Row<LossEntry>& loss : LossRows()) {
    for (const Row<ProxMode>& prox : ProxRows()) {
      if (loss.value.behaviour_anchor && prox.value != ProxMode::kNone) continue;
      for (uint64_t seed = 0; seed < 40; ++seed) {
        SplitMix64 random(seed + 500);
        const Batch b = RandomBatch(seed, {.bad_behav = true});
        const LossSpec spec = RandomSpec(std::string(loss.name), std::string(prox.name), &random);
        const std::string what = spec.kind + " " + spec.prox + " seed " + std::to_string(seed);

        const Packed p = Pack(b);
        const Product product = RunProduct(spec, p);
        const Weights weights = Correct(spec, b);
        ExpectSameCorrection(p, product.correction, weights, RoundingOf(spec), what);
        ExpectSameLosses(p, product.value, product.grad, PolicyLosses(spec, b, weights),
                         RoundingOf(spec), what);
        int64_t bad = 0;
        for (const float behav : p.behav) bad += !std::isfinite(behav);
        EXPECT_EQ(product.correction.bad_behav, bad) << what;
      }
    }
  }
}

TEST(MaskFp64Test, T12ARejectedTokenTakesNothingButItsOwnTermOnEitherSide) {
  const LossSpec spec = Weighted(Plain("ppo", "recompute"), 2);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Batch whole = RandomBatch(seed);
    const Packed p = Pack(whole);
    if (p.size() == 0) continue;
    const auto [row, column] = p.place[seed % p.size()];
    Batch less = whole;
    less.behav[row][column] = kNan;

    const TokenLosses slow_whole = PolicyLosses(spec, whole, Correct(spec, whole)),
                      slow_less = PolicyLosses(spec, less, Correct(spec, less));
    const Product before = RunProduct(spec, p), after = RunProduct(spec, Pack(less));
    for (size_t n = 0; n < p.size(); ++n) {
      const bool rejected = n == seed % p.size();
      const auto [i, t] = p.place[n];
      EXPECT_EQ(slow_less.gradient[i][t], rejected ? 0 : slow_whole.gradient[i][t]);
      EXPECT_EQ(after.grad[n], rejected ? 0 : before.grad[n]);
    }
  }
}

// The same tokens of the policy, without those of tools between them.
Batch Compact(const Batch& b) {
  Batch out;
  out.group = b.group;
  for (size_t i = 0; i < b.sequences(); ++i) {
    const auto take = [&](const auto& from, auto* to) {
      to->emplace_back();
      for (size_t t = 0; t < b.positions(i); ++t) {
        if (b.mask[i][t]) to->back().push_back(from[i][t]);
      }
    };
    take(b.mask, &out.mask), take(b.theta, &out.theta), take(b.prox, &out.prox);
    take(b.behav, &out.behav), take(b.ref, &out.ref), take(b.advantage, &out.advantage);
    take(b.entropy, &out.entropy), take(b.staleness, &out.staleness);
  }
  return out;
}

TEST(MaskFp64Test, T14TokensOfToolsAreAsIfTheyWereNotThere) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Batch b = RandomBatch(seed), compact = Compact(b);
    for (const Row<LossEntry>& loss : LossRows()) {
      SplitMix64 random(seed);
      const LossSpec spec = RandomSpec(std::string(loss.name), "none", &random);
      const TokenLosses with = PolicyLosses(spec, b, Correct(spec, b)),
                        without = PolicyLosses(spec, compact, Correct(spec, compact));
      EXPECT_EQ(Select(b.mask, with.gradient), Select(compact.mask, without.gradient));
      const Packed p = Pack(b);
      const Product product = RunProduct(spec, p);
      ExpectSameLosses(p, product.value, product.grad, with, kRounding, spec.kind);
    }
  }
}

TEST(MaskFp64Test, M2poDropsTheWorstOutwardTokensUntilTheBoundHolds) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SplitMix64 random(seed);
    const Batch b = RandomBatch(seed, {.extreme = seed % 3 == 1, .bad_behav = seed % 4 == 2});
    const Packed p = Pack(b);
    const Flags before = Usable(b);
    Flags after = before;
    const double tau = 0.2 * random.Uniform() + 1e-3;
    RejectByM2po(b, tau, &after);

    std::vector<uint8_t> usable;
    for (const auto& [i, t] : p.place) usable.push_back(before[i][t]);
    const std::vector<uint8_t> kept = M2poKeep(p.theta, p.behav, p.advantage, usable, tau);
    for (size_t n = 0; n < p.size(); ++n) {
      const auto [i, t] = p.place[n];
      EXPECT_EQ(kept[n] && usable[n], after[i][t] != 0) << "seed " << seed;
    }
  }
}

TEST(MaskFp64Test, ExactBoundsMismatchAndStalenessApartAsTheSlowFormDoes) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SplitMix64 random(seed);
    const Batch b = RandomBatch(seed, {.extreme = seed % 3 == 1, .bad_behav = seed % 4 == 2});
    LossSpec spec = RandomSpec(seed % 5 == 0 ? "reinforce" : "ppo", "exact", &random);
    spec.m2po.reset();
    spec.stale_cap = 0.8 + random.Uniform();
    Matrix snap = Like(b.mask);
    std::vector<float> packed;
    ForEachToken(b.mask, [&](size_t i, size_t t) {
      const bool known = random.Below(4) != 0 && std::isfinite(b.behav[i][t]);
      snap[i][t] = known ? Fp32(b.behav[i][t] + 0.4 * (random.Uniform() - 0.5)) : kNan;
      packed.push_back(static_cast<float>(snap[i][t]));
    });

    const Packed p = Pack(b);
    PolicyTokens tokens = p.Tokens(ProxMode::kExact);
    tokens.lp_snap = packed;
    const Weights slow =
        CorrectExact(b, snap, UsesTotalRatio(spec), SettingsOf(spec), spec.stale_cap);
    ExpectSameCorrection(p, ComputeCorrection(ResolveLoss(spec, 0)->correction, tokens), slow,
                         kRounding, "seed " + std::to_string(seed));
  }
}

TEST(MaskFp64Test, TheMeanOfTheWeightsIsTheSlowOne) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SplitMix64 random(seed);
    LossSpec spec = Weighted(Plain("ppo", "recompute"), 1 + random.Uniform(),
                             seed % 2 == 0 ? "token" : "sequence");
    spec.tis_low = random.Below(2) == 0 ? 0 : 0.8;
    spec.tis_outside = random.Below(2) == 0 ? "clip" : "drop";
    if (random.Below(2) == 0) spec.veto = 0.7;
    const Batch b = RandomBatch(seed, {.bad_behav = seed % 4 == 2});
    if (TokensOfStep(b.mask) == 0) continue;

    const Correction product = RunProduct(spec, Pack(b)).correction;
    ExpectSame(product.weight_sum / static_cast<double>(product.weights),
               MeanWeight(b.mask, Correct(spec, b).u, spec.tis_level), kRounding,
               spec.tis_level + " " + spec.tis_outside + " seed " + std::to_string(seed));
  }
}

TEST(MaskFp64Test, EveryAggregationIsItsSlowForm) {
  const Batch f = SheetF1();
  const LossSpec ppo = Plain("ppo", "recompute");
  const Matrix of_f1 = PolicyLosses(ppo, f, Correct(ppo, f)).value;
  ExpectClose(Aggregate("token_mean", f, of_f1, 4), -0.451485, "token_mean");
  ExpectClose(Aggregate("seq_mean_token_mean", f, of_f1, 4), -0.296855, "seq_mean_token_mean");
  ExpectClose(Aggregate("seq_mean_token_sum", f, of_f1, 4), -1.128711, "seq_mean_token_sum");
  ExpectClose(Aggregate("fixed_length", f, of_f1, 4), -0.282178, "fixed_length");
  ExpectClose(Aggregate("prompt_mean", f, of_f1, 4), -0.296855, "prompt_mean");

  for (const Row<Aggregation>& row : AggregationRows()) {
    for (uint64_t seed = 0; seed < 100; ++seed) {
      const Batch b = RandomBatch(seed);
      if (TokensOfStep(b.mask) == 0) continue;
      const StepCounts counts{.tokens = static_cast<int64_t>(TokensOfStep(b.mask)),
                              .sequences = static_cast<int64_t>(SequencesOfStep(b.mask)),
                              .prompts = static_cast<int64_t>(PromptsOfStep(b))};
      double sum = 0;
      ForEachToken(b.mask, [&](size_t i, size_t t) {
        sum += b.advantage[i][t] *
               row.value.sequence_weight(static_cast<int64_t>(TokensOf(b.mask, i)),
                                         static_cast<int64_t>(TokensOfGroup(b, b.group[i])));
      });
      ExpectSame(sum * row.value.step_scale(counts, 12),
                 Aggregate(std::string(row.name), b, b.advantage, 12), 1e-12,
                 std::string(row.name) + " seed " + std::to_string(seed));
    }
  }
}

}  // namespace
}  // namespace sluice::slow
