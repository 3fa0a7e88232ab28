#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/algorithms/m2po.h"
#include "common/algorithms/proximal.h"
#include "common/algorithms/ratio.h"
#include "common/algorithms/registry.h"
#include "tests/common/algorithms/loss_oracles.h"
#include "tests/common/algorithms/slow/batch.h"
#include "tests/common/algorithms/slow/step.h"

// The bridge between the slow implementation and the product: the same batch in both forms, and
// what equality means.
namespace sluice::slow {

// The product computes in fp64 from log-probs that are the same fp32 numbers here, and returns
// fp32, which rounds by 2^-24 = 6e-8 of the value. Where the slow side is a difference quotient,
// that is the larger error: the quotient of a value l with h = 1e-6 is off by about 2e-10 l.
inline constexpr double kRounding = 1.5e-7, kQuotient = 1e-6;

inline void ExpectSame(double product, double slow, double relative, const std::string& what) {
  EXPECT_NEAR(product, slow, relative * std::max(1.0, std::abs(slow))) << what;
}

// The tokens with mask 1 in one row, as the product has them.
struct Packed {
  std::vector<int64_t> offsets = {0};
  std::vector<std::pair<size_t, size_t>> place;  // (i, t) of each token.
  std::vector<float> theta, prox, behav, ref, advantage, entropy;
  std::vector<int32_t> staleness;

  size_t size() const { return theta.size(); }
  PolicyTokens Tokens(ProxMode mode) const {
    PolicyTokens tokens{offsets, theta, {}, behav, ref, advantage, {}};
    if (HasProximal(mode)) tokens.lp_prox = prox;
    return tokens;
  }
};

inline std::vector<float> Floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

inline Packed Pack(const Batch& b) {
  Packed p;
  ForEachToken(b.mask, [&](size_t i, size_t t) {
    p.place.emplace_back(i, t);
    p.staleness.push_back(b.staleness[i][t]);
  });
  for (size_t i = 0; i < b.sequences(); ++i)
    p.offsets.push_back(p.offsets.back() + static_cast<int64_t>(TokensOf(b.mask, i)));
  p.theta = Floats(Select(b.mask, b.theta));
  p.prox = Floats(Select(b.mask, b.prox));
  p.behav = Floats(Select(b.mask, b.behav));
  p.ref = Floats(Select(b.mask, b.ref));
  p.advantage = Floats(Select(b.mask, b.advantage));
  p.entropy = Floats(Select(b.mask, b.entropy));
  return p;
}

// The fixture F1 of section 1.6, in the sheet's own form: one of S = 4 positions is padding. All
// numbers are the fp64 numbers that the sheet's oracles were computed from.
inline Batch SheetF1() {
  return {.mask = {{1, 1, 1, 0}, {1, 1, 0, 0}},
          .theta = {{-0.5, -1.2, -2.0, kNan}, {-0.9, -1.6, kNan, kNan}},
          .prox = {{-0.6, -1.6, -1.9, kNan}, {-1.0, -1.1, kNan, kNan}},
          .behav = {{-0.7, -1.5, -2.2, kNan}, {-0.8, -1.4, kNan, kNan}},
          .ref = {{-0.4, -1.4, -1.8, kNan}, {-1.1, -1.3, kNan, kNan}},
          .advantage = {{1, 1, 1, kNan}, {-0.5, -0.5, kNan, kNan}},
          .entropy = {{0.5, 2, 1, kNan}, {1.5, 0, kNan, kNan}},
          .staleness = {{2, 1, 0, -1}, {1, 1, -1, -1}},
          .group = {0, 1}};
}

// What the product makes of a batch.
struct Product {
  std::vector<float> value, grad;
  Correction correction;
};

inline Product RunProduct(const LossSpec& spec, Packed packed) {
  const LossRule rule = ResolveLoss(spec, 0).value();
  if (rule.prox == ProxMode::kLoglinear)
    packed.prox = LoglinearProximal(packed.theta, packed.behav, packed.staleness);
  PolicyTokens tokens = packed.Tokens(rule.prox);
  std::vector<uint8_t> allowed;
  if (rule.m2po > 0) {
    allowed = M2poKeep(tokens.lp_theta, tokens.lp_behav, tokens.advantage,
                       ComputeCorrection(rule.correction, tokens).keep, rule.m2po);
    tokens.allowed = allowed;
  }

  Product out{.value = std::vector<float>(packed.size()),
              .grad = std::vector<float>(packed.size()),
              .correction = ComputeCorrection(rule.correction, tokens)};
  ComputePolicyLoss(rule.loss, rule.prox, tokens, out.correction, absl::MakeSpan(out.value),
                    absl::MakeSpan(out.grad));
  return out;
}

// lp_prox of loglinear is rounded to fp32 once more, which is at most 2^-24 of the log-probs of up
// to 33 nats here.
inline double RoundingOf(const LossSpec& spec) {
  return spec.prox == "loglinear" ? 4e-6 : kRounding;
}

// Compares value and gradient of each token. Tokens at a bound have no gradient; returns their
// number.
inline int ExpectSameLosses(const Packed& p, const std::vector<float>& value,
                            const std::vector<float>& grad, const TokenLosses& slow,
                            double rounding, const std::string& what) {
  int kinks = 0;
  for (size_t n = 0; n < p.size(); ++n) {
    const auto [i, t] = p.place[n];
    const std::string token = what + " token " + std::to_string(i) + "," + std::to_string(t);
    const double scale = std::max(1.0, std::abs(slow.value[i][t]));
    ExpectSame(value[n], slow.value[i][t], rounding, token + " value");
    if (slow.kink[i][t]) {
      ++kinks;
      continue;
    }
    EXPECT_NEAR(grad[n], slow.gradient[i][t],
                (kQuotient + rounding) * std::max(scale, std::abs(slow.gradient[i][t])))
        << token << " gradient";
  }
  return kinks;
}

inline void ExpectSameCorrection(const Packed& p, const Correction& product, const Weights& slow,
                                 double rounding, const std::string& what) {
  for (size_t n = 0; n < p.size(); ++n) {
    const auto [i, t] = p.place[n];
    EXPECT_EQ(product.keep[n], slow.k[i][t]) << what << " token " << i << "," << t;
    if (slow.k[i][t]) ExpectSame(product.weight[n], slow.u[i][t], rounding, what + " weight");
  }
}

}  // namespace sluice::slow
