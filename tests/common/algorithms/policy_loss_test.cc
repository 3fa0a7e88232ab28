#include "common/algorithms/policy_loss.h"

#include <cmath>
#include <limits>
#include <optional>

#include "common/algorithms/losses/aepo.h"
#include "common/algorithms/losses/reinforce.h"
#include "common/algorithms/m2po.h"
#include "common/algorithms/proximal.h"
#include "common/base/splitmix.h"
#include "tests/common/algorithms/loss_oracles.h"

namespace sluice {
namespace {

struct Evaluated {
  std::vector<float> value, grad;
  Correction correction;
};

Evaluated Evaluate(const LossSpec& spec, PolicyTokens tokens) {
  const LossRule rule = ResolveLoss(spec, 0).value();
  Evaluated e;
  std::vector<uint8_t> allowed;
  if (rule.m2po > 0) {
    allowed = M2poKeep(tokens.lp_theta, tokens.lp_behav, tokens.advantage,
                       ComputeCorrection(rule.correction, tokens).keep, rule.m2po);
    tokens.allowed = allowed;
  }
  e.value.resize(tokens.tokens());
  e.grad.resize(tokens.tokens());
  e.correction = ComputeCorrection(rule.correction, tokens);
  ComputePolicyLoss(rule.loss, rule.prox, tokens, e.correction, absl::MakeSpan(e.value),
                    absl::MakeSpan(e.grad));
  return e;
}

Evaluated Evaluate(const LossSpec& spec, F1 f) {
  if (spec.prox == "loglinear") f.prox = LoglinearProximal(f.theta, f.behav, f.staleness);
  return Evaluate(spec, f.Tokens(FindRow(ProxRows(), spec.prox)->value));
}

TEST(PolicyLossTest, EveryLossAnchorAndWeightHasAnOracle) {
  // The anchor `self` (ProxMode::kSelf) has no row in LossOracles(), because the test
  // SelfIsReinforceWithTheSameWeights covers it.
  std::vector<std::string> losses, proxes = {"self"}, weights, outside;
  for (const LossOracle& oracle : LossOracles()) {
    losses.push_back(oracle.spec.kind);
    proxes.push_back(oracle.spec.prox);
    if (oracle.spec.tis) weights.push_back(oracle.spec.tis_level);
    outside.push_back(oracle.spec.tis_outside);
  }

  ExpectOracleForEveryRow(LossRows(), losses);
  ExpectOracleForEveryRow(ProxRows(), proxes);
  ExpectOracleForEveryRow(WeightRows(), weights);
  ExpectOracleForEveryRow(OutsideRows(), outside);
}

TEST(PolicyLossTest, OraclesGiveTheWorkedNumbers) {
  for (const LossOracle& oracle : LossOracles()) {
    F1 f;
    if (!oracle.entropy.empty()) {
      const std::vector<double> factors = AepoFactors(oracle.entropy, oracle.spec.aepo_entropy);
      for (size_t t = 0; t < factors.size(); ++t)
        f.advantage[t] = static_cast<float>(f.advantage[t] * factors[t]);
    }
    const Evaluated e = Evaluate(oracle.spec, f);
    ExpectAllClose(e.value, oracle.value, oracle.name + " value");
    ExpectAllClose(e.grad, oracle.grad, oracle.name + " gradient");
    double sum = 0;
    for (float v : e.value) sum += v;
    ExpectClose(sum / 5, oracle.token_mean, oracle.name + " token mean");
  }
}

// Each loss without and with the dual clip; a loss without a ratio ignores it. The property tests
// run over all of them.
struct Variant {
  std::string name;
  TokenLoss loss;
};
std::vector<Variant> Variants() {
  std::vector<Variant> variants;
  for (const Row<LossEntry>& row : LossRows()) {
    variants.push_back(
        {std::string(row.name),
         row.value.make({.clip_low = 0.2, .clip_high = 0.28, .dual = std::nullopt})});
    variants.push_back({std::string(row.name) + " dual",
                        row.value.make({.clip_low = 0.2, .clip_high = 0.28, .dual = 3})});
  }
  return variants;
}

TEST(PolicyLossTest, T05GradientsAgreeWithFiniteDifferencesWhereWhatIsDetachedStays) {
  constexpr double kH = 1e-6;
  for (const Variant& v : Variants()) {
    SplitMix64 random(1);
    int kinks = 0;
    for (int i = 0; i < 2000; ++i) {
      LossToken token{.lp_theta = -3 * random.Uniform(),
                      .lp_anchor = -3 * random.Uniform(),
                      .advantage = 4 * random.Uniform() - 2,
                      .log_geo = random.Uniform() - 0.5};
      token.detached = token.lp_theta;

      LossToken up = token, down = token;
      up.lp_theta += kH;
      down.lp_theta -= kH;
      const double here = v.loss(token).value, above = (v.loss(up).value - here) / kH,
                   below = (here - v.loss(down).value) / kH, slope = (above + below) / 2;
      // The two sides differ where a bound begins.
      if (std::abs(above - below) > 1e-4 * std::max(1.0, std::abs(slope))) {
        ++kinks;
        continue;
      }
      EXPECT_NEAR(v.loss(token).grad, slope, 1e-6 * std::max(1.0, std::abs(slope)))
          << v.name << " lp " << token.lp_theta << " anchor " << token.lp_anchor << " A "
          << token.advantage << " log_geo " << token.log_geo;
    }
    EXPECT_LT(kinks, 20) << v.name;
  }
}

TEST(PolicyLossTest, T01AtEqualPoliciesEveryLossHasReinforcesGradient) {
  F1 f;
  f.prox = f.behav = f.theta;
  for (const Row<LossEntry>& row : LossRows()) {
    for (const Row<ProxMode>& prox : ProxRows()) {
      for (const Row<WeightLevel>& level : WeightRows()) {
        LossSpec spec{.kind = std::string(row.name),
                      .prox = std::string(prox.name),
                      .tis_level = std::string(level.name)};
        const Evaluated e = Evaluate(spec, f);

        for (int t = 0; t < 5; ++t) {
          EXPECT_FLOAT_EQ(e.grad[t], -f.advantage[t])
              << row.name << " " << prox.name << " " << level.name;
          EXPECT_EQ(e.correction.weight[t], 1);
          EXPECT_EQ(e.correction.keep[t], 1);
        }
      }
    }
  }
}

TEST(PolicyLossTest, T02SelfIsReinforceWithTheSameWeights) {
  for (const Row<WeightLevel>& level : WeightRows()) {
    const F1 f;
    const Evaluated self =
        Evaluate(Weighted(Plain("ppo", "self"), 1.3, std::string(level.name)), f);
    const Evaluated reinforce =
        Evaluate(Weighted(Plain("reinforce", "none"), 1.3, std::string(level.name)), f);
    EXPECT_EQ(self.grad, reinforce.grad) << level.name;
  }
}

TEST(PolicyLossTest, T02DecoupledWithoutBoundsIsTheRhoWeightedGradientWhateverProxIs) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    F1 f;
    SplitMix64 random(seed);
    for (float& p : f.prox) p = static_cast<float>(-3 * random.Uniform());

    LossSpec spec = Weighted(Plain("ppo", "recompute"), kInf);
    LossRule rule = ResolveLoss(spec, 0).value();
    rule.loss = [](const LossToken& token) { return PpoClip(token, {.low = kInf, .high = kInf}); };

    const PolicyTokens tokens = f.Tokens(ProxMode::kRecompute);
    std::vector<float> value(5), grad(5);
    ComputePolicyLoss(rule.loss, rule.prox, tokens, ComputeCorrection(rule.correction, tokens),
                      absl::MakeSpan(value), absl::MakeSpan(grad));

    for (int t = 0; t < 5; ++t) {
      const double wanted = -f.advantage[t] * std::exp(double{f.theta[t]} - f.behav[t]);
      EXPECT_NEAR(grad[t], wanted, 1e-6 * std::abs(wanted)) << "seed " << seed;
    }
  }
}

TEST(PolicyLossTest, T03BypassEqualsDecoupledWhereProxIsTheBehaviourPolicy) {
  F1 f;
  f.prox = f.behav;
  EXPECT_EQ(Evaluate(Plain("ppo", "none"), f).grad,
            Evaluate(Weighted(Plain("ppo", "recompute"), 2), f).grad);
}

TEST(PolicyLossTest, T03LossesThatCoincideAtTheirLimitsAreEqual) {
  F1 f;
  f.offsets = {0, 1, 2, 3, 4, 5};
  // A sequence of one token has the token's ratio.
  EXPECT_EQ(Evaluate(Plain("gspo", "recompute"), f).grad,
            Evaluate(Plain("ppo", "recompute"), f).grad);
  const LossSpec dual = With(Plain("ppo", "recompute"), [](LossSpec& s) { s.dual = 1e300; });
  EXPECT_EQ(Evaluate(dual, F1()).value, Evaluate(Plain("ppo", "recompute"), F1()).value);
  const LossSpec cispo = With(Plain("cispo", "none"), [](LossSpec& s) { s.cispo_high = kInf; });
  ExpectAllClose(Evaluate(cispo, F1()).grad,
                 Evaluate(Weighted(Plain("reinforce", "none"), kInf), F1()).grad, "cispo");
  const LossSpec icepop =
      With(Weighted(Plain("ppo", "recompute"), kInf), [](LossSpec& s) { s.tis_outside = "drop"; });
  EXPECT_EQ(Evaluate(icepop, F1()).grad,
            Evaluate(Weighted(Plain("ppo", "recompute"), kInf), F1()).grad);
}

TEST(PolicyLossTest, DualClipBoundsTheLossOfNegativeTokensAlone) {
  const ClipRule clip{.low = 0.2, .high = 0.2, .dual = 3};
  const auto at = [&](double x, double a) {
    return PpoClip({.lp_theta = std::log(x), .lp_anchor = 0, .advantage = a}, clip);
  };

  EXPECT_NEAR(at(4, -0.5).value, 1.5, 1e-12);
  EXPECT_EQ(at(4, -0.5).grad, 0);
  EXPECT_NEAR(at(2.5, -0.5).value, 1.25, 1e-12);
  EXPECT_NEAR(at(2.5, -0.5).grad, 1.25, 1e-12);
  EXPECT_NEAR(at(0.5, -0.5).value, 0.4, 1e-12);

  for (double x : {0.5, 1.0, 4.0}) {
    EXPECT_EQ(at(x, 0.5).value, PpoClip({std::log(x), 0, 0.5}, {.low = 0.2, .high = 0.2}).value);
  }
}

TEST(PolicyLossTest, T04ClipSemanticsHoldOverSixDecadesOfTheRatio) {
  const ClipRule clip{.low = 0.2, .high = 0.28};
  for (double log10_x = -3; log10_x <= 3; log10_x += 0.01) {
    const double x = std::pow(10.0, log10_x);
    for (double a : {1.0, -1.0}) {
      const LossValue l = PpoClip({.lp_theta = std::log(x), .lp_anchor = 0, .advantage = a}, clip);
      // The ratio is beyond the bound in the direction in which the advantage pushes it.
      const bool gone_too_far = a > 0 ? x > 1.28 : x < 0.8;

      EXPECT_NEAR(l.grad, gone_too_far ? 0 : -a * x, 1e-9 * x) << x << " " << a;
      EXPECT_NEAR(l.value, gone_too_far ? -a * (a > 0 ? 1.28 : 0.8) : -a * x, 1e-9 * x)
          << x << " " << a;
    }
  }
}

TEST(PolicyLossTest, AtTheBoundTheUnclippedBranchKeepsItsGradient) {
  EXPECT_EQ(PpoClip({.lp_theta = 0, .lp_anchor = 0, .advantage = 1}, {.low = 0, .high = 0}).grad,
            -1);
  EXPECT_EQ(PpoClip({.lp_theta = 0, .lp_anchor = 0, .advantage = -1}, {.low = 0, .high = 0}).grad,
            1);
}

TEST(PolicyLossTest, ARatioBeyondTheClampIsBoundedAndPassesNoGradient) {
  const LossValue l =
      PpoClip({.lp_theta = 0, .lp_anchor = -100, .advantage = -1}, {.low = 0.2, .high = 0.2});
  EXPECT_NEAR(l.value, std::exp(20.0), 1);
  EXPECT_EQ(l.grad, 0);
}

TEST(PolicyLossTest, T06NoAdvantageNoGradientAndASignFlipFlipsReinforceAndCispo) {
  for (const Row<LossEntry>& row : LossRows()) {
    // The penalty of DPPO-TV acts on every token.
    const TokenLoss loss = row.value.make({.dppo_penalty = 0});
    for (double x : {0.1, 1.0, 10.0})
      EXPECT_EQ(loss({.lp_theta = std::log(x), .detached = std::log(x)}).grad, 0) << row.name;
  }
  for (const char* kind : {"reinforce", "cispo"}) {
    const TokenLoss loss = FindRow(LossRows(), kind)->value.make({});
    EXPECT_EQ(loss({-1, 0, 0.7, -1}).grad, -loss({-1, 0, -0.7, -1}).grad) << kind;
  }
}

TEST(PolicyLossTest, ClipCountsAreOverAllTokens) {
  const F1 f;
  const ClipCounts counts = CountClipped({.low = 0.2, .high = 0.2, .dual = 3}, ProxMode::kRecompute,
                                         f.Tokens(ProxMode::kRecompute));
  EXPECT_EQ(counts.high, 1);
  EXPECT_EQ(counts.low, 1);
  EXPECT_EQ(counts.dual, 0);
}

TEST(PolicyLossTest, EqualEntropiesChangeNoAdvantage) {
  for (const size_t n : {2, 3, 18, 1000}) {
    for (const float h : {0.0f, 0.1f, 0.75f, 1.9459101f})
      EXPECT_THAT(AepoFactors(std::vector<float>(n, h), 0.2), testing::Each(1.0)) << n << " " << h;
  }
}

TEST(PolicyLossTest, SftIsTheNegativeLogProb) {
  double sum = 0;
  for (float lp : F1().theta) {
    sum += Sft(lp).value;
    EXPECT_EQ(Sft(lp).grad, -1);
  }
  ExpectClose(sum / 5, 1.24, "sft");
}

// Tests of weights and masks.

TEST(CorrectionTest, TheCapIsCounted) {
  const Correction c = ComputeCorrection({.level = WeightLevel::kToken, .cap = 1.2},
                                         F1().Tokens(ProxMode::kRecompute));
  ExpectAllClose(c.weight, std::vector<double>{1.105171, 0.904837, 1.2, 0.818731, 1.2},
                 "token TIS");
  EXPECT_EQ(c.capped_tokens, 2);
}

TEST(CorrectionTest, OneCatastrophicTokenVetoesItsSequence) {
  F1 f;
  // The weight is 9.1e-5, below the veto at 1e-4.
  f.prox[1] = f.behav[1] - 9.3f;
  const Correction c = ComputeCorrection({.level = WeightLevel::kToken, .cap = 2, .veto = 1e-4},
                                         f.Tokens(ProxMode::kRecompute));

  EXPECT_THAT(c.keep, testing::ElementsAre(0, 0, 0, 1, 1));
  EXPECT_EQ(c.by(Mask::kVeto).sequences, 1);
  EXPECT_EQ(c.by(Mask::kVeto).tokens, 3);

  // The weight is 1.01e-4, above the veto.
  f.prox[1] = f.behav[1] - 9.2f;
  EXPECT_THAT(ComputeCorrection({.veto = 1e-4}, f.Tokens(ProxMode::kRecompute)).keep,
              testing::Each(1));
}

TEST(CorrectionTest, ATokenWithAHugeWeightVetoesItsSequenceToo) {
  F1 f;
  f.prox[3] = f.behav[3] + 3;
  const Correction c = ComputeCorrection({.veto_high = 20}, f.Tokens(ProxMode::kRecompute));
  EXPECT_THAT(c.keep, testing::ElementsAre(1, 1, 1, 0, 0));
  EXPECT_EQ(c.by(Mask::kVeto).sequences, 1);
}

TEST(CorrectionTest, TheK3MaskLeavesOutASequenceThatIsFarOnTheMean) {
  // The means of w - 1 - log w are 0.019956 and 0.034295.
  const F1 f;
  const PolicyTokens kept = f.Tokens(ProxMode::kRecompute);
  EXPECT_THAT(ComputeCorrection({.k3_max = 0.0201}, kept).keep,
              testing::ElementsAre(1, 1, 1, 0, 0));
  EXPECT_THAT(ComputeCorrection({.k3_max = 0.0199}, kept).keep, testing::Each(0));
  EXPECT_THAT(ComputeCorrection({.k3_max = 0.0343}, kept).keep, testing::Each(1));
}

TEST(CorrectionTest, OpsmLeavesOutBadTokensOfAnswersThatThePolicyHasLeft) {
  F1 f;
  // The means of lp_behav - lp_theta are -0.233333 and 0.15.
  EXPECT_THAT(ComputeCorrection({.opsm = 0.1}, f.Tokens(ProxMode::kRecompute)).keep,
              testing::ElementsAre(1, 1, 1, 0, 0));
  EXPECT_THAT(ComputeCorrection({.opsm = 0.5}, f.Tokens(ProxMode::kRecompute)).keep,
              testing::Each(1));
  f.advantage[4] = 0.5f;  // A good token of such an answer stays.
  const Correction c = ComputeCorrection({.opsm = 0.1}, f.Tokens(ProxMode::kRecompute));
  EXPECT_THAT(c.keep, testing::ElementsAre(1, 1, 1, 0, 1));
  EXPECT_EQ(c.by(Mask::kOpsm).tokens, 1);
}

TEST(CorrectionTest, T12MasksCombineAndEachCountsItsOwn) {
  F1 f;
  const Correction c = ComputeCorrection({.geo_low = 0.9, .geo_high = 1.1, .opsm = 0.1},
                                         f.Tokens(ProxMode::kRecompute));
  EXPECT_THAT(c.keep, testing::Each(0));
  EXPECT_EQ(c.by(Mask::kGeo).tokens, 3);
  EXPECT_EQ(c.by(Mask::kOpsm).tokens, 2);
}

TEST(CorrectionTest, WeightsHaveALowerBoundAndAMean) {
  const F1 f;
  const Correction c = ComputeCorrection({.level = WeightLevel::kToken, .low = 0.95, .cap = 1.2},
                                         f.Tokens(ProxMode::kRecompute));
  ExpectAllClose(c.weight, std::vector<double>{1.105171, 0.95, 1.2, 0.95, 1.2}, "weights");
  EXPECT_EQ(c.capped_tokens, 4);
  ExpectClose(c.weight_sum, 1.105171 + 0.95 + 1.2 + 0.95 + 1.2, "sum");
  EXPECT_EQ(c.weights, 5);

  const Correction sequence = ComputeCorrection({.level = WeightLevel::kSequence, .cap = 10},
                                                f.Tokens(ProxMode::kRecompute));
  ExpectClose(sequence.weight_sum, 1.349859 + 1.105171, "sequence sum");
  EXPECT_EQ(sequence.weights, 2);
}

TEST(CorrectionTest, ALossWithoutARatioIsWeightedByTheTotalRatio) {
  const LossRule rule = ResolveLoss(Weighted(Plain("reinforce", "recompute"), kInf), 0).value();
  const Correction c = ComputeCorrection(rule.correction, F1().Tokens(ProxMode::kRecompute));
  const std::vector<double> rho = {1.221403, 1.349859, 1.221403, 0.904837, 0.818731};
  ExpectAllClose(c.weight, rho, "rho");
}

TEST(CorrectionTest, T12ABadBehaviourLogProbRemovesItsOwnTokenAndNothingElse) {
  for (float bad : {std::nanf(""), -std::numeric_limits<float>::infinity(),
                    std::numeric_limits<float>::infinity()}) {
    for (const Row<LossEntry>& row : LossRows()) {
      // In a mean over the sequence, a token that is missing changes the others.
      if (row.value.sequence_ratio) continue;
      for (const Row<ProxMode>& prox : ProxRows()) {
        const LossSpec spec{.kind = std::string(row.name), .prox = std::string(prox.name)};

        F1 f;
        const Evaluated whole = Evaluate(spec, f);
        f.behav[2] = bad;
        const Evaluated less = Evaluate(spec, f);

        EXPECT_EQ(less.correction.bad_behav, 1);
        for (int t = 0; t < 5; ++t) {
          EXPECT_EQ(less.grad[t], t == 2 ? 0 : whole.grad[t])
              << row.name << " " << prox.name << " token " << t;
          EXPECT_EQ(less.value[t], t == 2 ? 0 : whole.value[t])
              << row.name << " " << prox.name << " token " << t;
        }
      }
    }
  }
}

TEST(CorrectionTest, T10AnEmptySequenceChangesNothing) {
  for (const LossOracle& oracle : LossOracles()) {
    F1 f;
    const Evaluated without = Evaluate(oracle.spec, f);
    f.offsets = {0, 0, 3, 3, 5, 5};
    EXPECT_EQ(Evaluate(oracle.spec, f).grad, without.grad) << oracle.name;
  }
}

TEST(CorrectionTest, NoTokensGiveNoGradients) {
  const std::vector<int64_t> offsets = {0, 0};
  for (const Row<LossEntry>& row : LossRows()) {
    EXPECT_TRUE(Evaluate(Plain(std::string(row.name), "none"), PolicyTokens{.offsets = offsets})
                    .grad.empty());
  }
}

// Tests of the off-policy estimators, by enumerating all sequences of three tokens over a
// vocabulary of three.

// Log-probs of a policy whose distribution at a position depends on the token before it. logits is
// [3 positions][4 contexts][3 tokens]; context 3 is the start of the sequence.
struct ToyPolicy {
  double logits[3][4][3];
  explicit ToyPolicy(uint64_t seed) {
    SplitMix64 random(seed);
    for (auto& position : logits) {
      for (auto& context : position) {
        for (double& z : context) z = 2 * random.Uniform() - 1;
      }
    }
  }
  double LogProb(int t, int context, int token) const {
    const double* z = logits[t][context];
    return z[token] - std::log(std::exp(z[0]) + std::exp(z[1]) + std::exp(z[2]));
  }
};

// Returns the expected gradient of sum_t grad_t lp_t with respect to the logits [36] of theta.
// `estimator` returns the grad_t [3] of a sequence, and each sequence is weighted by its
// probability under `under`.
template <typename Estimator>
std::vector<double> ExpectedGradient(const ToyPolicy& theta, const ToyPolicy& under,
                                     Estimator estimator) {
  std::vector<double> gradient(36, 0.0);
  for (int code = 0; code < 27; ++code) {
    const int tokens[3] = {code % 3, code / 3 % 3, code / 9};
    double log_prob = 0;
    for (int t = 0; t < 3; ++t) log_prob += under.LogProb(t, t == 0 ? 3 : tokens[t - 1], tokens[t]);
    const std::vector<double> grads = estimator(tokens);

    for (int t = 0; t < 3; ++t) {
      const int context = t == 0 ? 3 : tokens[t - 1];
      for (int v = 0; v < 3; ++v) {
        const double score = (v == tokens[t] ? 1 : 0) - std::exp(theta.LogProb(t, context, v));
        gradient[(t * 4 + context) * 3 + v] += std::exp(log_prob) * grads[t] * score;
      }
    }
  }

  return gradient;
}

TEST(OffPolicyTest, T07SequenceWeightsAreUnbiasedAndTokenWeightsAreNot) {
  const ToyPolicy theta(1), behav(2);
  const auto reward = [](const int* tokens) {
    return tokens[0] == tokens[2] ? 1.0 + tokens[1] : -0.5;
  };
  const std::vector<double> exact = ExpectedGradient(
      theta, theta, [&](const int* tokens) { return std::vector<double>(3, -reward(tokens)); });

  const auto estimate = [&](std::string level) {
    return ExpectedGradient(theta, behav, [&](const int* tokens) {
      F1 f;
      f.offsets = {0, 3};
      f.theta.resize(3), f.behav.resize(3), f.ref.clear();
      f.advantage.assign(3, static_cast<float>(reward(tokens)));

      for (int t = 0; t < 3; ++t) {
        f.theta[t] = static_cast<float>(theta.LogProb(t, t == 0 ? 3 : tokens[t - 1], tokens[t]));
        f.behav[t] = static_cast<float>(behav.LogProb(t, t == 0 ? 3 : tokens[t - 1], tokens[t]));
      }

      const Evaluated e = Evaluate(Weighted(Plain("reinforce", "none"), kInf, level), f);
      return std::vector<double>(e.grad.begin(), e.grad.end());
    });
  };

  const std::vector<double> sequence = estimate("sequence"), token = estimate("token");
  double token_bias = 0;
  for (int i = 0; i < 36; ++i) {
    EXPECT_NEAR(sequence[i], exact[i], 1e-6) << i;  // The log-probs are fp32, hence 1e-6.
    token_bias = std::max(token_bias, std::abs(token[i] - exact[i]));
  }

  EXPECT_GT(token_bias, 1e-3);
}

}  // namespace
}  // namespace sluice
