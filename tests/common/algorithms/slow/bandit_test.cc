// The bandit of bandit.h, simulated a second time with the slow formulas in fp64.

#include "tests/common/algorithms/bandit.h"

#include "common/algorithms/presets.h"
#include "tests/common/algorithms/slow/advantages.h"
#include "tests/common/algorithms/slow/aggregation.h"
#include "tests/common/algorithms/slow/compare.h"
#include "tests/common/algorithms/slow/optimizer.h"
#include "tests/common/algorithms/slow/statistics.h"

namespace sluice::slow {
namespace {

// Logits of the two arms.
struct Arms {
  double z0 = 0, z1 = -std::log(9.0);

  double P1() const { return 1 / (1 + std::exp(z0 - z1)); }
  double LogProb(int arm) const { return std::log(arm == 1 ? P1() : 1 - P1()); }
};

// One step's answers of one token each: the arms are rewards and tokens at once.
struct Draws {
  std::vector<int> arm;
  Rewards r;
};
Draws Draw(const Arms& behav, bool filter, SplitMix64* random) {
  Draws draws;
  for (int g = 0; g < kBanditGroups; ++g) {
    std::vector<double> group;
    for (int i = 0; i < kBanditGroupSize; ++i)
      group.push_back(random->Uniform() < behav.P1() ? 1 : 0);
    if (filter && !KeepsGroup(group)) continue;
    for (const double reward : group) {
      draws.arm.push_back(static_cast<int>(reward));
      draws.r.reward.push_back(reward);
      draws.r.group.push_back(g);
    }
  }
  return draws;
}

Batch BatchOf(const Draws& draws, const Arms& theta, const Arms& behav, int staleness) {
  Batch b{.group = draws.r.group};
  for (const int arm : draws.arm) {
    b.mask.push_back({1});
    b.theta.push_back({theta.LogProb(arm)});
    b.behav.push_back({behav.LogProb(arm)});
    b.staleness.push_back({staleness});
  }
  b.prox = b.theta;  // One optimizer step per batch.
  b.ref = b.entropy = b.advantage = Like(b.mask);
  return b;
}

// Advantages of the answers; under 9.2 the score of an answer has the components s and -s.
std::vector<double> AdvantagesOf(const std::string& kind, const Draws& draws, const Arms& theta,
                                 const Matrix& u) {
  if (kind == "gae") {
    // The value of the only state is the same for all answers, so that whitening removes it.
    Matrix rewards;
    for (const double reward : draws.r.reward) rewards.push_back({reward});
    const Flags all(rewards.size(), {1});
    return Select(all, Whiten(all, rewards));
  }
  if (kind != "min_variance") return AdvantagesByName(kind, draws.r);
  std::vector<double> om;
  for (size_t i = 0; i < draws.arm.size(); ++i) {
    const double s = draws.arm[i] - theta.P1();
    om.push_back(u[i][0] * u[i][0] * 2 * s * s);
  }
  return MinVarianceAdvantages(draws.r, om);
}

// p of arm 1 after each step of a run.
std::vector<double> SlowCurve(const AlgorithmSpec& spec, int lag, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<Arms> history = {Arms()};
  AdamW z0{.p = history[0].z0}, z1{.p = history[0].z1};
  std::vector<double> curve;
  for (int step = 0; step < kBanditSteps; ++step) {
    const Arms theta = history.back(), behav = history[step - std::min(step, lag)];
    const Draws draws = Draw(behav, spec.advantage.signal_filter, &random);
    if (!draws.arm.empty()) {
      Batch b = BatchOf(draws, theta, behav, std::min(step, lag));
      const std::vector<double> a =
          AdvantagesOf(spec.advantage.kind, draws, theta, Correct(spec.loss, b).u);
      for (size_t i = 0; i < a.size(); ++i) b.advantage[i][0] = a[i];

      Matrix along_z1 = PolicyLosses(spec.loss, b, Correct(spec.loss, b)).gradient;
      for (size_t i = 0; i < a.size(); ++i) along_z1[i][0] *= draws.arm[i] - theta.P1();
      const double g = Aggregate(spec.loss.aggregation, b, along_z1, 1);

      const double q = EssRatio(SequenceSums(b.mask, Difference(b.mask, b.theta, b.behav)));
      const double power = spec.loss.ess_lr == "sqrt" ? 0.5 : spec.loss.ess_lr == "linear" ? 1 : 0;
      z0.lr = z1.lr = 0.05 * LearningRateFactor(q, spec.loss.ess_base, power);
      const double factor = ClipByNorm(GlobalNorm({-g, g}), 1);
      z0.Step(-g * factor);
      z1.Step(g * factor);
    }
    history.push_back({z0.p, z1.p});
    curve.push_back(history.back().P1());
  }
  return curve;
}

TEST(BanditFp64Test, T28EveryPresetsCurveIsThatOfTheSlowSimulation) {
  for (const Row<AlgorithmSpec>& preset : PresetRows()) {
    if (NeedsTeacher(preset.value)) continue;
    for (const int lag : {0, 4, 16}) {
      SCOPED_TRACE(testing::Message() << preset.name << " lag " << lag);
      const Curve product = TrainBandit(preset.value, lag, 1);
      const std::vector<double> slow = SlowCurve(preset.value, lag, 1);
      ASSERT_EQ(product.p.size(), slow.size());
      // Two hundred updates carry the fp32 rounding of the logits along.
      for (size_t step = 0; step < slow.size(); ++step)
        ASSERT_NEAR(product.p[step], slow[step], 1e-5) << "step " << step;

      EXPECT_GE(slow.back(), 0.98);
      const auto above = std::find_if(slow.begin(), slow.end(), [](double p) { return p > 0.95; });
      EXPECT_GE(above - slow.begin() + 1, 51);
      EXPECT_LE(above - slow.begin() + 1, LatestAbove(preset.value, lag));
    }
  }
}

}  // namespace
}  // namespace sluice::slow
