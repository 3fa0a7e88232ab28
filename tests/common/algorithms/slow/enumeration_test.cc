// Expected gradients by enumeration of all sequences, or of a vocabulary: the slow formulas against
// the exact gradient, and the product against both.

#include <array>

#include "common/algorithms/kl.h"
#include "tests/common/algorithms/kl_oracles.h"
#include "tests/common/algorithms/slow/compare.h"

namespace sluice::slow {
namespace {

// A policy over three tokens whose distribution depends on the position and the token before, by
// logits [3 positions][4 contexts][3 tokens]; context 3 is the start.
struct EnumeratedPolicy {
  std::array<std::array<std::array<double, 3>, 4>, 3> z;

  explicit EnumeratedPolicy(uint64_t seed) {
    SplitMix64 random(seed);
    for (auto& position : z) {
      for (auto& context : position) {
        for (double& v : context) v = 2 * random.Uniform() - 1;
      }
    }
  }
  double LogProb(const std::array<int, 3>& tokens, int t) const {
    const auto& logits = z[t][t == 0 ? 3 : tokens[t - 1]];
    return logits[tokens[t]] -
           std::log(std::exp(logits[0]) + std::exp(logits[1]) + std::exp(logits[2]));
  }
  double LogProb(const std::array<int, 3>& tokens) const {
    return LogProb(tokens, 0) + LogProb(tokens, 1) + LogProb(tokens, 2);
  }
};

template <typename Visitor>
void ForEachSequence(const Visitor& visit) {
  for (int code = 0; code < 27; ++code) visit(std::array<int, 3>{code % 3, code / 3 % 3, code / 9});
}

// Adds c times the gradient of lp_t by the logits of `policy` to `gradient` [36].
void AddScore(const EnumeratedPolicy& policy, const std::array<int, 3>& tokens, int t, double c,
              std::vector<double>* gradient) {
  const int context = t == 0 ? 3 : tokens[t - 1];
  for (int v = 0; v < 3; ++v) {
    std::array<int, 3> other = tokens;
    other[t] = v;
    (*gradient)[(t * 4 + context) * 3 + v] +=
        c * ((v == tokens[t] ? 1 : 0) - std::exp(policy.LogProb(other, t)));
  }
}

Batch OneSequence(const EnumeratedPolicy& theta, const EnumeratedPolicy& behav,
                  const std::array<int, 3>& tokens, double reward) {
  Batch b{.mask = {{1, 1, 1}}, .advantage = {{reward, reward, reward}}, .group = {0}};
  b.theta = b.behav = b.ref = b.entropy = Like(b.mask);
  b.staleness = Like<int>(b.mask);
  for (int t = 0; t < 3; ++t) {
    b.theta[0][t] = theta.LogProb(tokens, t);
    b.behav[0][t] = behav.LogProb(tokens, t);
  }
  b.prox = b.theta;
  return b;
}

TEST(EnumerationFp64Test, T07SequenceWeightsAreUnbiasedTo1e10OnTheSlowSideAndTokenWeightsAreNot) {
  const EnumeratedPolicy theta(1), behav(2);
  const LossSpec by_sequence = Weighted(Plain("reinforce", "none"), kInf, "sequence"),
                 by_token = Weighted(Plain("reinforce", "none"), kInf, "token");
  std::vector<double> exact(36, 0.0), slow = exact, token = exact, product = exact;
  ForEachSequence([&](const std::array<int, 3>& tokens) {
    const double reward = tokens[0] == tokens[2] ? 1.0 + tokens[1] : -0.5;
    const Batch b = OneSequence(theta, behav, tokens, reward);
    const Matrix u = Correct(by_sequence, b).u, u_token = Correct(by_token, b).u;
    const Product run = RunProduct(by_sequence, Pack(b));
    const double p = std::exp(theta.LogProb(tokens)), q = std::exp(behav.LogProb(tokens));
    for (int t = 0; t < 3; ++t) {
      AddScore(theta, tokens, t, p * -reward, &exact);
      AddScore(theta, tokens, t, q * u[0][t] * -reward, &slow);
      AddScore(theta, tokens, t, q * u_token[0][t] * -reward, &token);
      AddScore(theta, tokens, t, q * run.grad[t], &product);
    }
  });

  double bias = 0;
  for (int n = 0; n < 36; ++n) {
    EXPECT_NEAR(slow[n], exact[n], 1e-10);
    EXPECT_NEAR(product[n], exact[n], 1e-6);  // Its log-probs are fp32.
    bias = std::max(bias, std::abs(token[n] - exact[n]));
  }
  EXPECT_GT(bias, 1e-3);
}

TEST(EnumerationFp64Test, T08TheKlTableHoldsForTheSlowFormsUnderEnumeration) {
  const std::vector<double> p = KlPolicy();
  for (const KlOracle& oracle : KlOracles()) {
    const std::vector<double>& under = oracle.kind == "k3_is" ? kKlBehav : p;
    const KlFunction function = FindRow(KlRows(), oracle.kind)->value.function;
    std::vector<double> slow(3, 0.0), product(3, 0.0);
    for (int a = 0; a < 3; ++a) {
      const double sg = std::log(p[a]), ref = std::log(kKlRef[a]), behav = std::log(under[a]);
      const double slope =
          Slope([&](double lp) { return KlValue(oracle.kind, lp, ref, behav, sg); }, sg);
      for (int v = 0; v < 3; ++v) {
        const double score = under[a] * ((v == a ? 1 : 0) - p[v]);
        slow[v] += slope * score;
        product[v] += function({sg, ref, behav}).grad * score;
      }
    }

    for (int v = 0; v < 3; ++v) {
      EXPECT_NEAR(slow[v], oracle.expected[v], 1e-6) << oracle.kind;
      EXPECT_NEAR(product[v], slow[v], 1e-8) << oracle.kind;
    }
  }
}

}  // namespace
}  // namespace sluice::slow
