// Whole steps on a toy model: the product's formulas over micro-batches, with gradients that are
// summed, clipped and given to AdamW, against the same step as one slow function of the parameters.

#include <array>
#include <numeric>
#include <optional>

#include "common/algorithms/advantage.h"
#include "common/algorithms/diagnostics.h"
#include "common/algorithms/kl.h"
#include "common/optim/adamw.h"
#include "common/optim/grad_norm.h"
#include "tests/common/algorithms/slow/advantages.h"
#include "tests/common/algorithms/slow/aggregation.h"
#include "tests/common/algorithms/slow/compare.h"
#include "tests/common/algorithms/slow/optimizer.h"
#include "tests/common/algorithms/slow/random_batch.h"
#include "tests/common/algorithms/slow/scores.h"
#include "tests/common/algorithms/slow/statistics.h"

namespace sluice::slow {
namespace {

constexpr size_t kVocab = 7;
constexpr double kToyLimit = 12;  // L_max

// One layer: row `previous` holds the logits of the next token.
using ToyWeights = std::vector<double>;  // [kVocab * kVocab]

Logits RowOf(const ToyWeights& w, size_t previous) {
  return {w.begin() + static_cast<int64_t>(previous * kVocab),
          w.begin() + static_cast<int64_t>((previous + 1) * kVocab)};
}

ToyWeights RandomWeights(SplitMix64* random) {
  ToyWeights w;
  for (size_t n = 0; n < kVocab * kVocab; ++n) w.push_back(Fp32(random->Uniform() - 0.5));
  return w;
}
ToyWeights Near(const ToyWeights& w, double distance, SplitMix64* random) {
  ToyWeights out = w;
  for (double& v : out) v = Fp32(v + distance * (2 * random->Uniform() - 1));
  return out;
}

// The answers of a step, the weights of each policy, and what is trained on them.
struct ToyStep {
  std::vector<std::vector<size_t>> tokens;  // [B][S + 1]; the first is the prompt.
  Rewards r;
  ToyWeights theta, prox, behav, ref;
  LossSpec loss;
  std::string advantage = "pool_loo";
  double sft = 0;  // Coefficient of -lp_theta, the mean over all tokens.
};

Matrix LogProbs(const ToyStep& step, const ToyWeights& w) {
  Matrix out;
  for (const auto& tokens : step.tokens) {
    out.emplace_back();
    for (size_t t = 1; t < tokens.size(); ++t)
      out.back().push_back(LogProb(RowOf(w, tokens[t - 1]), 1, tokens[t]));
  }
  return out;
}

Batch BatchOf(const ToyStep& step) {
  Batch b{.theta = LogProbs(step, step.theta),
          .prox = LogProbs(step, step.prox),
          .behav = LogProbs(step, step.behav),
          .ref = LogProbs(step, step.ref),
          .group = step.r.group};
  for (const auto& row : b.theta) b.mask.emplace_back(row.size(), 1);
  b.entropy = b.advantage = Like(b.mask);
  b.staleness = Like<int>(b.mask, 1);
  const std::vector<double> a = AdvantagesByName(step.advantage, step.r);
  ForEachToken(b.mask, [&](size_t i, size_t t) { b.advantage[i][t] = a[i]; });
  return b;
}

// Groups of 1 to 4 answers of 0 to 5 tokens.
ToyStep RandomStep(uint64_t seed) {
  SplitMix64 random(seed);
  ToyStep step{.theta = RandomWeights(&random)};
  step.prox = Near(step.theta, 0.1, &random);
  step.behav = Near(step.theta, 0.3, &random);
  step.ref = Near(step.theta, 0.5, &random);
  for (int64_t group = 0; group < 4; ++group) {
    for (uint64_t n = 1 + random.Below(4); n > 0; --n) {
      step.r.group.push_back(group);
      step.r.reward.push_back(static_cast<double>(random.Below(3)) / 2);
      std::vector<size_t>& tokens = step.tokens.emplace_back();
      for (uint64_t t = 1 + random.Below(6); t > 0; --t) tokens.push_back(random.Below(kVocab));
    }
  }
  step.tokens[0] = {0, 1, 2};  // At least one answer has tokens.
  step.loss = Weighted(Plain("dapo", "recompute"), 2);
  return step;
}

// The loss of the step as a function of the parameters; what is detached stays that of theta.
double ToyLoss(const ToyStep& step, const Batch& b, const Weights& weights, const ToyWeights& w) {
  const std::vector<std::vector<TokenConstants>> constants = ConstantsOf(step.loss, b);
  const Matrix lp = LogProbs(step, w);
  Matrix policy = Like(b.mask), kl = Like(b.mask), sft = Like(b.mask);
  ForEachToken(b.mask, [&](size_t i, size_t t) {
    const TokenConstants& c = constants[i][t];
    if (weights.k[i][t]) policy[i][t] = weights.u[i][t] * TokenLoss(step.loss, lp[i][t], c);
    kl[i][t] = KlValue(step.loss.kl_kind, lp[i][t], b.ref[i][t], b.behav[i][t], c.sg);
    sft[i][t] = SftLoss(lp[i][t]);
  });
  double loss = Aggregate(step.loss.aggregation, b, policy, kToyLimit);
  if (step.loss.kl > 0) loss += step.loss.kl * Aggregate(step.loss.aggregation, b, kl, kToyLimit);
  return loss + step.sft * TokenMean(b, sft);
}

std::vector<double> SlowGradient(const ToyStep& step) {
  const Batch b = BatchOf(step);
  const Weights weights = Correct(step.loss, b);
  return LogitGradient([&](const ToyWeights& w) { return ToyLoss(step, b, weights, w); },
                       step.theta);
}

// With this eps, the update moves no more than its gradient is off.
constexpr double kToyLr = 0.01, kToyEps = 0.01;

// The parameters after one update of AdamW.
ToyWeights SlowUpdate(const ToyWeights& theta, const std::vector<double>& gradient) {
  const double factor = ClipByNorm(GlobalNorm(gradient), 0.1);
  ToyWeights out;
  for (size_t n = 0; n < theta.size(); ++n) {
    AdamW adam{.lr = kToyLr, .eps = kToyEps, .wd = 0.01, .p = theta[n]};
    adam.Step(factor * gradient[n]);
    out.push_back(adam.p);
  }
  return out;
}
std::vector<float> ProductUpdate(const ToyWeights& theta, const std::vector<float>& gradient) {
  const auto n = static_cast<int64_t>(gradient.size());
  const double factor = ClipFactor(std::sqrt(SumOfSquares(gradient.data(), n)), 0.1);
  std::vector<float> p = Floats(theta), m(gradient.size()), v(gradient.size());
  AdamWStep({.eps = kToyEps}, 1, kToyLr, true, factor, n, gradient.data(), p.data(), m.data(),
            v.data());
  return p;
}

// Accumulates gradients as a trainer does: micro-batch by micro-batch, the terms apart.
class ProductGradient {
 public:
  explicit ProductGradient(const ToyStep& step)
      : step_(step), rule_(ResolveLoss(step.loss, 1).value()) {}

  // Adds the sequences `rows` of the batch, as one micro-batch. N_g is taken from the whole batch.
  void Add(const Batch& b, const std::vector<size_t>& rows) {
    Batch part = b;
    for (auto& mask : part.mask) mask.assign(mask.size(), 0);
    for (const size_t i : rows) part.mask[i] = b.mask[i];
    const Packed p = Pack(part);
    const PolicyTokens tokens = p.Tokens(rule_.prox);
    const Product run = RunProduct(step_.loss, p);
    std::vector<float> kl(p.size(), 0.0f), value(p.size());
    if (rule_.kl != nullptr)
      ComputeKlLoss(rule_.kl, tokens, absl::MakeSpan(value), absl::MakeSpan(kl));

    for (size_t n = 0; n < p.size(); ++n) {
      const auto [i, t] = p.place[n];
      const double weight =
          rule_.aggregation.sequence_weight(static_cast<int64_t>(TokensOf(b.mask, i)),
                                            static_cast<int64_t>(TokensOfGroup(b, b.group[i])));
      AddScore(i, t, weight * run.grad[n], &policy_);
      AddScore(i, t, weight * rule_.kl_coef * kl[n], &regular_);
      AddScore(i, t, step_.sft * Sft(p.theta[n]).grad, &sft_);
    }
  }

  // The gradient of the step, whose advantages still lack `factor`.
  std::vector<float> Finish(const Batch& b, double factor) const {
    const StepCounts counts{.tokens = static_cast<int64_t>(TokensOfStep(b.mask)),
                            .sequences = static_cast<int64_t>(SequencesOfStep(b.mask)),
                            .prompts = static_cast<int64_t>(PromptsOfStep(b))};
    const double scale = rule_.aggregation.step_scale(counts, static_cast<int64_t>(kToyLimit));
    std::vector<float> out;
    for (size_t n = 0; n < policy_.size(); ++n) {
      out.push_back(static_cast<float>(scale * (factor * policy_[n] + regular_[n]) +
                                       sft_[n] / static_cast<double>(counts.tokens)));
    }
    return out;
  }

 private:
  // d lp / d logits of the row is 1 at the token less the probabilities.
  void AddScore(size_t i, size_t t, double coefficient, std::vector<float>* sum) const {
    const size_t previous = step_.tokens[i][t], token = step_.tokens[i][t + 1];
    const Logits row = RowOf(step_.theta, previous);
    for (size_t v = 0; v < kVocab; ++v) {
      (*sum)[previous * kVocab + v] +=
          static_cast<float>(coefficient * ((v == token ? 1 : 0) - std::exp(LogProb(row, 1, v))));
    }
  }

  const ToyStep& step_;
  const LossRule rule_;
  std::vector<float> policy_ = std::vector<float>(kVocab * kVocab), regular_ = policy_,
                     sft_ = policy_;
};

// The sequences in a random order, cut into micro-batches of random size.
std::vector<std::vector<size_t>> RandomPartition(size_t sequences, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<size_t> order(sequences);
  std::iota(order.begin(), order.end(), 0);
  for (size_t n = sequences; n > 1; --n) std::swap(order[n - 1], order[random.Below(n)]);
  std::vector<std::vector<size_t>> parts(1);
  for (const size_t i : order) {
    if (random.Below(3) == 0) parts.emplace_back();
    parts.back().push_back(i);
  }
  return parts;
}

void ExpectSameStep(const ToyStep& step, const std::vector<float>& gradient) {
  const std::vector<double> slow = SlowGradient(step);
  for (size_t n = 0; n < slow.size(); ++n) EXPECT_NEAR(gradient[n], slow[n], 1e-6) << n;
  const ToyWeights wanted = SlowUpdate(step.theta, slow);
  const std::vector<float> updated = ProductUpdate(step.theta, gradient);
  for (size_t n = 0; n < wanted.size(); ++n) EXPECT_NEAR(updated[n], wanted[n], 1e-6) << n;
}

TEST(ToyStepFp64Test, T18AnyPartitionOfAMixedLossGivesTheGradientOfTheWholeSlowStep) {
  for (const Row<Aggregation>& aggregation : AggregationRows()) {
    for (const Row<LossEntry>& loss : LossRows()) {
      for (uint64_t seed = 0; seed < 3; ++seed) {
        SCOPED_TRACE(testing::Message()
                     << aggregation.name << " " << loss.name << " seed " << seed);
        ToyStep step = RandomStep(seed);
        step.loss.kind = std::string(loss.name);
        if (loss.value.behaviour_anchor) step.loss.prox = "none", step.loss.tis = std::nullopt;
        step.loss.aggregation = std::string(aggregation.name);
        step.loss.kl = 0.1;
        step.loss.kl_kind = "k3_is";
        step.sft = 0.2;

        const Batch b = BatchOf(step);
        ProductGradient gradient(step);
        for (const auto& rows : RandomPartition(b.sequences(), seed)) gradient.Add(b, rows);
        ExpectSameStep(step, gradient.Finish(b, 1));
      }
    }
  }
}

TEST(ToyStepFp64Test, T20StreamedGroupsWithALateScaleGiveTheGradientOfTheWholeSlowStep) {
  for (const char* kind : {"pool_loo", "lite_ppo", "grpo", "dr_grpo", "rloo", "maxrl"}) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(testing::Message() << kind << " seed " << seed);
      ToyStep step = RandomStep(seed + 100);
      step.advantage = kind;
      step.loss.kl = 0.1, step.loss.kl_kind = "k2";

      // The groups arrive one after another, before the scale of the step is known.
      Batch b = BatchOf(step);
      AdvantageStream stream(FindRow(AdvantageRows(), kind)->value);
      ProductGradient gradient(step);
      for (int64_t group = 0; group < 4; ++group) {
        std::vector<size_t> rows;
        std::vector<double> rewards;
        for (size_t i = 0; i < b.sequences(); ++i) {
          if (b.group[i] == group) rows.push_back(i), rewards.push_back(step.r.reward[i]);
        }
        const std::vector<double> a = stream.AddGroup(rewards);
        for (size_t n = 0; n < rows.size(); ++n)
          std::fill(b.advantage[rows[n]].begin(), b.advantage[rows[n]].end(), a[n]);
        gradient.Add(b, rows);
      }
      ExpectSameStep(step, gradient.Finish(b, stream.StepFactor()));
    }
  }
}

TEST(ToyStepFp64Test, T20OnlyOneRatioOfTwoSumsIsTheMeanOfTheSheetsExample) {
  // Two ranks: the first has the micro-batches {1, 2, 3} and {4}, the second {10} and {20, 30}.
  const Matrix l = {{1, 2, 3}, {4}, {10}, {20, 30}};
  const Batch b{.mask = {{1, 1, 1}, {1}, {1}, {1, 1}}, .group = {0, 1, 2, 3}};
  EXPECT_DOUBLE_EQ(TokenMean(b, l), 10);
  EXPECT_DOUBLE_EQ(SeqMeanTokenMean(b, l), 10.25);
  EXPECT_DOUBLE_EQ((Mean({1, 2, 3, 4}) + Mean({10, 20, 30})) / 2, 11.25);

  double sum = 0;
  ForEachToken(b.mask, [&](size_t i, size_t t) {
    sum += kTokenMean.sequence_weight(static_cast<int64_t>(l[i].size()), 0) * l[i][t];
  });
  EXPECT_DOUBLE_EQ(sum * kTokenMean.step_scale({.tokens = 7, .sequences = 4, .prompts = 4}, 8), 10);
}

TEST(ToyStepFp64Test, T22AnyArrivalOrderOfOneVersionGivesTheSynchronousSlowStep) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    ToyStep step = RandomStep(seed + 200);
    step.behav = step.prox = step.theta;  // All samples are of the version that is trained.
    const Batch b = BatchOf(step);
    ProductGradient gradient(step);
    for (const auto& rows : RandomPartition(b.sequences(), seed)) gradient.Add(b, rows);
    ExpectSameStep(step, gradient.Finish(b, 1));

    // The synchronous gradient is that of REINFORCE.
    ToyStep reinforce = step;
    reinforce.loss = Plain("reinforce", "none");
    const std::vector<double> synchronous = SlowGradient(reinforce), slow = SlowGradient(step);
    for (size_t n = 0; n < slow.size(); ++n) EXPECT_NEAR(slow[n], synchronous[n], 1e-8);

    // With one sample of older weights there is staleness, and rho is not 1.
    SplitMix64 random(seed);
    ToyStep stale = step;
    stale.behav = Near(step.theta, 0.3, &random);
    Batch mixed = b;
    mixed.behav[0] = LogProbs(stale, stale.behav)[0];
    StalenessStats staleness;
    for (size_t i = 0; i < b.sequences(); ++i) {
      const auto length = static_cast<uint32_t>(TokensOf(b.mask, i));
      if (length > 0) staleness.Add(std::vector<VersionRun>{{{1, i == 0 ? 4 : 5}, length}}, 5);
    }
    EXPECT_EQ(staleness.max(), 1);
    const Values rho = Select(b.mask, Difference(b.mask, mixed.theta, mixed.behav));
    EXPECT_GT(Largest(AbsDiff(rho)), 1e-3);
    const Packed p = Pack(mixed);
    PolicyStats stats;
    stats.Add(p.Tokens(ProxMode::kRecompute), RunProduct(step.loss, p).correction, {});
    EXPECT_NEAR(stats.Metrics()->kl_behav_theta_k3, MeanK3(rho), 1e-6);
    EXPECT_GT(stats.Metrics()->kl_behav_theta_k3, 0);
  }
}

}  // namespace
}  // namespace sluice::slow
