#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/splitmix.h"
#include "tests/common/algorithms/loss_oracles.h"
#include "tests/common/algorithms/slow/batch.h"

// Random batches and specs. A seed gives the same ones everywhere.
namespace sluice::slow {

// The nearest fp32 number, so that both implementations start from the same one.
inline double Fp32(double value) { return static_cast<float>(value); }

// What a random batch may contain.
struct BatchOptions {
  bool extreme = false;    // Some log-ratios are far beyond every clamp.
  bool bad_behav = false;  // Some behaviour log-probs are not finite.
  double spread = 0.5;     // How far the policies are apart, in nats.
};

namespace internal {

inline double DrawLogProb(SplitMix64* random, double theta, const BatchOptions& options) {
  double shift = options.spread * (2 * random->Uniform() - 1);
  if (options.extreme && random->Below(6) == 0) shift = 60 * random->Uniform() - 30;
  return Fp32(theta + shift);
}

inline void DrawToken(SplitMix64* random, const BatchOptions& options, double advantage, Batch* b,
                      size_t i, size_t t) {
  const double theta = Fp32(-3 * random->Uniform());
  b->mask[i][t] = 1;
  b->theta[i][t] = theta;
  b->prox[i][t] = DrawLogProb(random, theta, options);
  b->behav[i][t] = DrawLogProb(random, theta, options);
  b->ref[i][t] = DrawLogProb(random, theta, options);
  b->advantage[i][t] = advantage;
  b->entropy[i][t] = Fp32(2 * random->Uniform());
  b->staleness[i][t] = static_cast<int>(random->Below(6));
  if (options.bad_behav && random->Below(8) == 0)
    b->behav[i][t] = random->Below(2) == 0 ? kNan : -INFINITY;
}

}  // namespace internal

// A batch of 1 to 6 sequences, in groups of neighbours, with 0 to 10 tokens of the policy between
// those of tools. All numbers are fp32 numbers, NaN where the mask is 0. A third of the sequences
// have advantages of 0, a third one for all tokens, and a third one for each token.
inline Batch RandomBatch(uint64_t seed, const BatchOptions& options = {}) {
  SplitMix64 random(seed);
  const size_t sequences = 1 + random.Below(6), positions = 1 + random.Below(10);
  Batch b;
  b.mask = Flags(sequences, std::vector<uint8_t>(positions, 0));
  for (Matrix* m : {&b.theta, &b.prox, &b.behav, &b.ref, &b.advantage, &b.entropy})
    *m = Like(b.mask, kNan);
  b.staleness = Like<int>(b.mask, -1);

  for (size_t i = 0; i < sequences; ++i) {
    b.group.push_back(i > 0 && random.Below(2) == 0 ? b.group.back() : static_cast<int64_t>(i));
    const uint64_t kind = random.Below(3), share = random.Below(11);
    const double whole = Fp32(2 * random.Uniform() - 1);
    for (size_t t = 0; t < positions; ++t) {
      const double own = Fp32(2 * random.Uniform() - 1);
      if (random.Below(10) < share)
        internal::DrawToken(&random, options, kind == 0 ? 0 : (kind == 1 ? whole : own), &b, i, t);
    }
  }
  return b;
}

// A spec with random bounds, weights and masks.
inline LossSpec RandomSpec(const std::string& kind, const std::string& prox, SplitMix64* random) {
  LossSpec s{.kind = kind, .prox = prox, .tis = std::nullopt, .veto = std::nullopt};
  const auto half = [&] { return random->Below(2) == 0; };
  s.clip_low = 0.4 * random->Uniform();
  s.clip_high = half() ? 0.4 * random->Uniform() : kInf;
  if (!half()) s.dual = std::nullopt;
  if (s.dual) s.dual = 1 + 2 * random->Uniform();
  s.cispo_low = half() ? 0 : 0.8;
  s.cispo_high = half() ? 1.28 : 5;
  s.sapo_positive = 0.5 + random->Uniform();
  s.sapo_negative = 0.5 + random->Uniform();
  s.dppo_delta = 0.2 * random->Uniform();
  s.dppo_penalty = half() ? 1e-3 : 0.1;

  // Without a proximal policy, only a loss without a ratio may be weighted.
  const bool weighted = prox != "none" || kind == "reinforce";
  if (weighted && random->Below(4) != 0) {
    s.tis = half() ? 1 + random->Uniform() : kInf;
    s.tis_low = half() ? 0 : 0.8;
    s.tis_level = half() ? "token" : "sequence";
    s.tis_outside = half() ? "clip" : "drop";
  }

  if (half()) s.veto = half() ? 1e-4 : 0.7;
  if (random->Below(4) == 0) s.veto_high = 1.5;
  if (random->Below(4) == 0) s.geo_low = 0.9, s.geo_high = 1.1;
  if (random->Below(4) == 0) s.k3_max = 0.03;
  if (random->Below(4) == 0) s.opsm = 0.1 * random->Uniform();
  if (random->Below(4) == 0) s.m2po = 0.1 * random->Uniform();
  return s;
}

}  // namespace sluice::slow
