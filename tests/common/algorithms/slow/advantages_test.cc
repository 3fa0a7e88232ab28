// Advantages: the product against the slow formulas, on random steps.

#include "tests/common/algorithms/slow/advantages.h"

#include <map>

#include "common/algorithms/advantage.h"
#include "common/algorithms/duration.h"
#include "common/algorithms/gae.h"
#include "common/algorithms/kl_control.h"
#include "common/algorithms/min_variance.h"
#include "common/algorithms/returns.h"
#include "common/algorithms/shaping.h"
#include "tests/common/algorithms/advantage_oracles.h"
#include "tests/common/algorithms/slow/compare.h"
#include "tests/common/algorithms/slow/random_batch.h"

namespace sluice::slow {
namespace {

// Both sides are fp64, but for the order of their sums.
constexpr double kSums = 1e-10;

// A step of 1 to 20 answers in up to 6 groups: of one member, of equal rewards, of rewards that are
// equal but for rounding, and with rewards that are negative or not finite.
Rewards RandomRewards(uint64_t seed) {
  SplitMix64 random(seed);
  const size_t n = 1 + random.Below(20), groups = 1 + random.Below(6);
  Rewards r;
  for (size_t i = 0; i < n; ++i) {
    const auto group = static_cast<int64_t>(random.Below(groups));
    double reward = random.Below(2) == 0 ? random.Uniform() : static_cast<double>(random.Below(2));
    if (group == 1) reward = 0.3;
    if (group == 2) reward = 0.7 + 1e-9 * random.Uniform();
    if (random.Below(15) == 0) reward = -random.Uniform();
    if (random.Below(12) == 0) reward = random.Below(2) == 0 ? kNan : INFINITY;
    r.reward.push_back(reward);
    r.group.push_back(group);
  }
  return r;
}

TEST(AdvantageFp64Test, TheSlowFormGivesTheSheetsNumbers) {
  for (const AdvantageOracle& oracle : AdvantageOracles())
    ExpectAllClose(AdvantagesByName(oracle.kind, {kRewardsOfPAndQ, kGroupsOfPAndQ}), oracle.wanted,
                   oracle.kind);
  EXPECT_NEAR(SoftOverlongPenalty(16000, 20480, 4096, 1), 0, 0);
  EXPECT_NEAR(SoftOverlongPenalty(18432, 20480, 4096, 1), -0.5, 0);
  EXPECT_NEAR(SoftOverlongPenalty(20480, 20480, 4096, 1), -1, 0);
  EXPECT_NEAR(Std({1, 0, 0.5, 1}, 1), 0.478714, 1e-6);
}

TEST(AdvantageFp64Test, EveryRowIsItsSlowFormOnRandomSteps) {
  for (const Row<AdvantageRule>& row : AdvantageRows()) {
    for (uint64_t seed = 0; seed < 300; ++seed) {
      const Rewards r = RandomRewards(seed);
      const std::vector<double> product = ComputeAdvantages(row.value, r.reward, r.group).advantage,
                                slow = AdvantagesByName(std::string(row.name), r);
      ASSERT_EQ(product.size(), slow.size()) << row.name << " has no slow form";
      for (size_t i = 0; i < slow.size(); ++i)
        ExpectSame(product[i], slow[i], kSums,
                   std::string(row.name) + " seed " + std::to_string(seed));
    }
  }
}

TEST(AdvantageFp64Test, T11StepsWithoutASignalHaveExactlyZeroOnBothSides) {
  const std::vector<Rewards> steps = {{{0.4}, {0}},
                                      {{0.4, 0.4, 0.4}, {0, 0, 0}},
                                      {{0.1, 0.9, 0.5}, {0, 1, 2}},
                                      {{kNan, 0.5, -INFINITY}, {0, 0, 0}},
                                      {{0.1 + 0.2, 0.3}, {0, 0}}};
  for (const Row<AdvantageRule>& row : AdvantageRows()) {
    if (!NeedsGroup(row.value)) continue;
    for (const Rewards& r : steps) {
      const std::vector<double> none(r.reward.size(), 0.0);
      EXPECT_EQ(ComputeAdvantages(row.value, r.reward, r.group).advantage, none) << row.name;
      EXPECT_EQ(AdvantagesByName(std::string(row.name), r), none) << row.name;
    }
  }
}

TEST(AdvantageFp64Test, T13AFilteredAnswerStaysInTheBaselineAndOverlongOnesLoseAsTheSlowFormSays) {
  SplitMix64 random(13);
  for (int n = 0; n < 500; ++n) {
    const auto limit = static_cast<int64_t>(1 + random.Below(20480)),
               buffer = static_cast<int64_t>(random.Below(5000)),
               length = static_cast<int64_t>(random.Below(25000));
    const double penalty = 2 * random.Uniform();
    EXPECT_NEAR(SoftOverlong(length, limit, buffer, penalty),
                SoftOverlongPenalty(static_cast<double>(length), static_cast<double>(limit),
                                    static_cast<double>(buffer), penalty),
                1e-12)
        << length << " of " << limit << ", buffer " << buffer;
  }

  // A filtered answer has mask 0, so that no token has its advantage; its reward is in the group.
  const Rewards r{{1, 0, 0.5, 1}, {0, 0, 0, 0}};
  const Flags kept = {{1, 1}, {0, 0}, {1, 0}, {1, 1}};
  const std::vector<double> product =
                                ComputeAdvantages(AdvantageRule(), r.reward, r.group).advantage,
                            slow = PoolLoo(r);
  ForEachToken(kept, [&](size_t i, size_t) { ExpectSame(product[i], slow[i], kSums, "filtered"); });
}

TEST(AdvantageFp64Test, T15SumsShiftsAndUnitsBehaveAlikeOnBothSides) {
  for (const Row<AdvantageRule>& row : AdvantageRows()) {
    if (!HasGroupCentre(row.value) || row.value.scale == Scale::kGroupMean) continue;
    for (uint64_t seed = 0; seed < 50; ++seed) {
      SCOPED_TRACE(testing::Message() << row.name << " seed " << seed);
      const Rewards r = RandomRewards(seed);
      Rewards shifted = r;
      for (double& v : shifted.reward) v += 3;
      const std::vector<double> slow = AdvantagesByName(std::string(row.name), r),
                                slow_shifted = AdvantagesByName(std::string(row.name), shifted),
                                product =
                                    ComputeAdvantages(row.value, shifted.reward, r.group).advantage;

      std::map<int64_t, double> sums;
      for (size_t i = 0; i < slow.size(); ++i) {
        sums[r.group[i]] += slow[i];
        EXPECT_NEAR(slow_shifted[i], slow[i], 1e-8);
        EXPECT_NEAR(product[i], slow[i], 1e-8);
      }
      for (const auto& [group, sum] : sums) EXPECT_NEAR(sum, 0, 1e-8) << "group " << group;
    }
  }
}

// The advantages of single tokens as the product makes them: A_i of the row, the KL of each token,
// returns or not, and the whitening.
std::vector<double> ProductTokenAdvantages(const AdvantageRule& rule, const Batch& b,
                                           const std::vector<double>& reward, double beta,
                                           double gamma) {
  const std::vector<double> whole = ComputeAdvantages(rule, reward, b.group).advantage;
  const Packed p = Pack(b);
  std::vector<double> out;
  for (size_t i = 0; i < b.sequences(); ++i) {
    std::vector<double> values;
    for (int64_t n = p.offsets[i]; n < p.offsets[i + 1]; ++n)
      values.push_back(-beta * (double{p.prox[n]} - p.ref[n]));
    if (values.empty()) continue;
    if (rule.tokens == TokenRule::kReturns) {
      values.back() += whole[i];
      ToReturns(gamma, absl::MakeSpan(values));
    } else {
      for (double& v : values) v += whole[i];
    }
    out.insert(out.end(), values.begin(), values.end());
  }

  TokenMoments moments;
  for (const double v : out) moments.Add(v);
  for (double& v : out) v = moments.Whiten(v);
  return out;
}

TEST(AdvantageFp64Test, T14WhitenedTokensSkipThoseOfToolsOnBothSides) {
  const AdvantageRule returns = FindRow(AdvantageRows(), "reinforce_pp")->value,
                      baseline = FindRow(AdvantageRows(), "reinforce_pp_baseline")->value;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Batch b = RandomBatch(seed);
    SplitMix64 random(seed);
    const double beta = 0.2 * random.Uniform(), gamma = 0.5 + 0.5 * random.Uniform();
    std::vector<double> reward;
    for (size_t i = 0; i < b.sequences(); ++i) reward.push_back(random.Uniform());

    const std::vector<double> products[] = {
        ProductTokenAdvantages(returns, b, reward, beta, gamma),
        ProductTokenAdvantages(baseline, b, reward, beta, gamma)};
    const std::vector<double> slow[] = {
        Select(b.mask, ReinforcePlusPlus(b, b.prox, beta, gamma, reward)),
        Select(b.mask, ReinforcePlusPlusBaseline(b, b.prox, beta, reward))};
    for (int kind = 0; kind < 2; ++kind) {
      ASSERT_EQ(products[kind].size(), slow[kind].size());
      for (size_t n = 0; n < slow[kind].size(); ++n)
        ExpectSame(products[kind][n], slow[kind][n], 1e-8, "seed " + std::to_string(seed));
    }
  }
}

TEST(AdvantageFp64Test, RewardsOfSingleTokensAreThoseOfTheSlowForm) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Batch b = RandomBatch(seed);
    SplitMix64 random(seed + 3);
    const double gamma = 0.5 + 0.5 * random.Uniform();
    Matrix earned = Like(b.mask);
    std::vector<double> reward;
    for (size_t i = 0; i < b.sequences(); ++i) {
      reward.push_back(random.Uniform());
      for (double& value : earned[i]) value = random.Below(3) == 0 ? random.Uniform() - 0.5 : 0;
    }
    const Matrix slow = Returns(b.mask, TokenRewards(b.mask, earned), reward, gamma);

    for (size_t i = 0; i < b.sequences(); ++i) {
      std::vector<uint64_t> positions;
      std::vector<TokenReward> token_rewards;
      for (size_t t = 0; t < b.positions(i); ++t) {
        if (b.mask[i][t]) positions.push_back(t);
        if (earned[i][t] != 0) token_rewards.push_back({t, earned[i][t]});
      }
      if (positions.empty()) continue;
      std::vector<double> product = PlaceRewards(reward[i], token_rewards, positions);
      ToReturns(gamma, absl::MakeSpan(product));
      for (size_t n = 0; n < positions.size(); ++n)
        ExpectSame(product[n], slow[i][positions[n]], kSums, "seed " + std::to_string(seed));
    }
  }
}

TEST(AdvantageFp64Test, TheFactorsOfTurnsAreThoseOfTheSlowForm) {
  const Matrix sheet =
      DurationFactors({{1, 1, 1, 1}, {1, 0}}, {{0, 0, 1, 1}, {0, 0}}, {{2, 2, 6, 6}, {1, 1}});
  ExpectAllClose(sheet[0], std::vector<double>{0.666667, 0.666667, 2, 2}, "first");
  ExpectClose(sheet[1][0], 0.333333, "second");

  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Batch b = RandomBatch(seed);
    SplitMix64 random(seed + 5);
    std::vector<std::vector<int>> action = Like(b.mask, 0);
    Matrix duration = Like(b.mask);
    std::vector<double> seconds;                   // Of the actions with a token of the policy.
    std::vector<std::pair<size_t, size_t>> first;  // Where these begin.
    for (size_t i = 0; i < b.sequences(); ++i) {
      int number = 0;
      double dt = 0;
      for (size_t t = 0; t < b.positions(i); ++t) {
        if (t == 0 || random.Below(3) == 0) {
          ++number;
          dt = random.Below(5) == 0 ? 0 : std::exp(6 * random.Uniform());
        }
        action[i][t] = number;
        duration[i][t] = dt;
        const bool begins =
            first.empty() || first.back().first != i || action[i][first.back().second] != number;
        if (!b.mask[i][t] || !begins) continue;
        seconds.push_back(dt);
        first.emplace_back(i, t);
      }
    }
    const Matrix slow = DurationFactors(b.mask, action, duration);
    const std::vector<double> product = sluice::DurationFactors(seconds);
    for (size_t n = 0; n < first.size(); ++n)
      ExpectSame(product[n], slow[first[n].first][first[n].second], kSums,
                 "seed " + std::to_string(seed));
  }
}

// A batch with values, and rewards that carry the KL of each token.
struct GaeStep {
  Batch b;
  Matrix value, rewards;
  std::vector<double> boot;
};
GaeStep RandomGaeStep(uint64_t seed) {
  SplitMix64 random(seed);
  GaeStep step{.b = RandomBatch(seed)};
  step.value = Like(step.b.mask, kNan);
  step.rewards = KlRewards(step.b, step.b.prox, 0.2 * random.Uniform());
  ForEachToken(step.b.mask, [&](size_t i, size_t t) {
    step.value[i][t] = Fp32(2 * random.Uniform() - 1);
    if (random.Below(4) == 0) step.rewards[i][t] += random.Uniform();
  });
  for (size_t i = 0; i < step.b.sequences(); ++i)
    step.boot.push_back(random.Below(2) == 0 ? 0 : Fp32(random.Uniform()));
  return step;
}

// The product's advantages and targets of all tokens, sequence by sequence.
struct ProductGae {
  std::vector<double> advantage, target;
};
ProductGae RunProductGae(const GaeRule& rule, const GaeStep& step) {
  ProductGae out;
  for (size_t i = 0; i < step.b.sequences(); ++i) {
    const Flags mask = {step.b.mask[i]};
    const std::vector<double> rewards = Select(mask, {step.rewards[i]});
    const std::vector<float> values = Floats(Select(mask, {step.value[i]}));
    std::vector<float> advantage(rewards.size()), target(rewards.size());
    ComputeGae(rule, rewards, values, step.boot[i], absl::MakeSpan(advantage),
               absl::MakeSpan(target));
    out.advantage.insert(out.advantage.end(), advantage.begin(), advantage.end());
    out.target.insert(out.target.end(), target.begin(), target.end());
  }
  return out;
}

TEST(AdvantageFp64Test, T14GaeSkipsTokensOfToolsOnBothSides) {
  // The sheet's example: a masked token with a value of 9.9 after the first.
  const GaeResult hole =
      Gae({{1, 0, 1, 1}}, {{0, 0, 0, 1}}, {{0.2, 9.9, 0.5, 0.6}}, {0}, 1, 0.95, 0.95);
  ExpectAllClose(hole.advantage[0], std::vector<double>{0.756, 0, 0.48, 0.4}, "advantage");
  ExpectAllClose(hole.target[0], std::vector<double>{0.956, 0, 0.98, 1}, "target");
  ExpectAllClose(Gae({{1, 1, 1}}, {{0, 0, 0}}, {{0.2, 0.5, 0.6}}, {0.7}, 1, 0.95, 1).advantage[0],
                 std::vector<double>{0.485250, 0.195, 0.1}, "bootstrapped");

  for (uint64_t seed = 0; seed < 300; ++seed) {
    SplitMix64 random(seed + 7);
    const GaeStep step = RandomGaeStep(seed);
    const double gamma = 0.5 + 0.5 * random.Uniform(), lam = random.Uniform(),
                 lam_value = random.Uniform();
    const ProductGae product =
        RunProductGae({.gamma = gamma, .lam = lam, .lam_value = lam_value}, step);
    const GaeResult slow =
        Gae(step.b.mask, step.rewards, step.value, step.boot, gamma, lam, lam_value);
    const std::vector<double> advantage = Select(step.b.mask, slow.advantage),
                              target = Select(step.b.mask, slow.target);
    ASSERT_EQ(product.advantage.size(), advantage.size());
    for (size_t n = 0; n < advantage.size(); ++n) {
      ExpectSame(product.advantage[n], advantage[n], kRounding, "A, seed " + std::to_string(seed));
      ExpectSame(product.target[n], target[n], kRounding, "G, seed " + std::to_string(seed));
    }
  }
}

TEST(AdvantageFp64Test, T15GaeWithoutValuesIsTheRestOfTheRewardOnBothSides) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    GaeStep step = RandomGaeStep(seed);
    step.value = Like(step.b.mask);
    step.boot.assign(step.boot.size(), 0);
    const std::vector<double> zero(step.b.sequences(), 0.0);
    const std::vector<double> rest =
        Select(step.b.mask, Returns(step.b.mask, step.rewards, zero, 1));
    const std::vector<double> slow = Select(
        step.b.mask, Gae(step.b.mask, step.rewards, step.value, step.boot, 1, 1, 1).advantage);
    const ProductGae product = RunProductGae({.gamma = 1, .lam = 1}, step);
    for (size_t n = 0; n < rest.size(); ++n) {
      EXPECT_NEAR(slow[n], rest[n], 1e-12) << seed;
      ExpectSame(product.advantage[n], rest[n], kRounding, "seed " + std::to_string(seed));
    }
  }
}

TEST(AdvantageFp64Test, LambdasAndKlCoefficientsThatAdaptAreTheSlowOnes) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SplitMix64 random(seed);
    const double alpha = 2 * random.Uniform() + 1e-3, kl = random.Uniform() - 0.3,
                 target = random.Uniform() + 1e-3;
    const int64_t n = static_cast<int64_t>(1 + random.Below(1000));
    EXPECT_DOUBLE_EQ(PolicyLambda({.lam_alpha = alpha}, n),
                     AdaptedLambda(alpha, static_cast<double>(n)));
    EXPECT_DOUBLE_EQ(AdaptKl({.target = target, .horizon = 5000}, 0.01, kl, n),
                     AdaptedBeta(0.01, kl, target, static_cast<double>(n), 5000));
  }
  EXPECT_NEAR(AdaptedBeta(0.001, 0.15, 0.1, 512, 10000), 0.001010, 1e-6);
}

TEST(AdvantageFp64Test, TheSlowTokenAdvantagesGiveTheSheetsNumbers) {
  const Batch f = SheetF1();
  ExpectAllClose(Select(f.mask, ReinforcePlusPlus(f, f.prox, 0.1, 1, {1, 0})),
                 std::vector<double>{0.764665, 0.730064, 0.695464, -1.103747, -1.086447},
                 "reinforce_pp");
  const Batch p{
      .mask = {{1, 1}, {1}, {1}, {1}}, .ref = {{0, 0}, {0}, {0}, {0}}, .group = {0, 0, 0, 0}};
  ExpectAllClose(Select(p.mask, ReinforcePlusPlusBaseline(p, p.ref, 0, {1, 0, 0.5, 1})),
                 std::vector<double>{0.670820, 0.670820, -1.565248, -0.447214, 0.670820},
                 "reinforce_pp_baseline");
  ExpectAllClose(RewardsLessKl(f, f.prox, 0.05, {1, 0}), std::vector<double>{1.025, -0.015},
                 "kl in the reward");
}

// A step under the baseline of minimum variance: rewards and, by answer, wbar, T and the gradient
// of the sum of its log-probs.
struct VarianceStep {
  Rewards r;
  std::vector<double> wbar, tokens, om;
  std::vector<std::vector<double>> score;
};
VarianceStep RandomVarianceStep(uint64_t seed) {
  SplitMix64 random(seed);
  VarianceStep step;
  step.r = RandomRewards(seed);
  for (double& v : step.r.reward) v = std::isfinite(v) ? v : 0.25;
  for (size_t i = 0; i < step.r.reward.size(); ++i) {
    step.wbar.push_back(random.Below(8) == 0 ? 0 : std::exp(4 * random.Uniform() - 2));
    step.tokens.push_back(static_cast<double>(1 + random.Below(9)));
    std::vector<double>& score = step.score.emplace_back();
    double squares = 0;
    for (int d = 0; d < 5; ++d) {
      score.push_back(2 * random.Uniform() - 1);
      squares += score.back() * score.back();
    }
    step.om.push_back(step.wbar[i] * step.wbar[i] * squares);
  }
  return step;
}

// The advantages of the product: those of the row, less the baseline of each group.
std::vector<double> ProductVarianceAdvantages(const VarianceStep& step) {
  const AdvantageRule rule = FindRow(AdvantageRows(), "min_variance")->value;
  std::vector<double> out = ComputeAdvantages(rule, step.r.reward, step.r.group).advantage;
  std::map<int64_t, std::vector<size_t>> groups;
  for (size_t i = 0; i < out.size(); ++i) groups[step.r.group[i]].push_back(i);
  for (const auto& [group, members] : groups) {
    std::vector<double> advantage, power;
    for (const size_t i : members) advantage.push_back(out[i]), power.push_back(step.om[i]);
    const double baseline = MinVarianceBaseline(advantage, power);
    for (const size_t i : members) out[i] -= baseline;
  }
  return out;
}

TEST(AdvantageFp64Test, T16TheTwoBuffersOfTheSheetGiveTheGradientOfTheProductsAdvantages) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    const VarianceStep step = RandomVarianceStep(seed);
    const std::vector<double> product = ProductVarianceAdvantages(step),
                              slow = MinVarianceAdvantages(step.r, step.om);
    for (size_t i = 0; i < slow.size(); ++i) ExpectSame(product[i], slow[i], 1e-9, "A");

    // X holds the sum of (R_i / d_g) g_i and Y that of g_i / d_g, with g_i = (wbar_i / T_i) score_i
    // from a backward pass with unit advantage; the step's gradient has X - b_g Y of each group.
    for (size_t d = 0; d < 5; ++d) {
      double direct = 0, buffers = 0;
      for (size_t i = 0; i < slow.size(); ++i)
        direct += step.wbar[i] / step.tokens[i] * product[i] * step.score[i][d];

      for (size_t i = 0; i < slow.size(); ++i) {
        if (!HasSignal(step.r, i)) continue;
        std::vector<double> reward, om;
        for (size_t j = 0; j < slow.size(); ++j) {
          if (step.r.group[j] == step.r.group[i])
            reward.push_back(step.r.reward[j]), om.push_back(step.om[j]);
        }
        const double x = step.r.reward[i] / Std(reward, 0) * step.wbar[i] / step.tokens[i],
                     y = step.wbar[i] / step.tokens[i] / Std(reward, 0);
        buffers += (x - MinVariance(reward, om) * y) * step.score[i][d];
      }
      ExpectSame(direct, buffers, 1e-9, "gradient");
    }
  }
}

TEST(AdvantageFp64Test, T16TheBaselineIsTheSlowOneAndMinimisesTheSecondMoment) {
  const auto moment = [](const VarianceStep& step, double b) {
    double sum = 0;
    for (size_t i = 0; i < step.om.size(); ++i)
      sum += step.om[i] * (step.r.reward[i] - b) * (step.r.reward[i] - b);
    return sum;
  };

  for (uint64_t seed = 0; seed < 100; ++seed) {
    const VarianceStep step = RandomVarianceStep(seed);
    const double b = MinVariance(step.r.reward, step.om);
    ExpectSame(MinVarianceBaseline(step.r.reward, step.om), b, 1e-12, "baseline");
    for (const double other : {b - 1e-3, b + 1e-3})
      EXPECT_GE(moment(step, other), moment(step, b)) << seed;
  }
  ExpectClose(MinVariance({1, 0, 0.5, 1}, {16, 0.25, 2, 0.5}), 0.933333, "baseline");
  ExpectAllClose(MinVarianceAdvantages({{1, 0, 0.5, 1}, {0, 0, 0, 0}}, {16, 0.25, 2, 0.5}),
                 std::vector<double>{0.160806, -2.251285, -1.045239, 0.160806}, "advantages");
  EXPECT_EQ(MinVariance({1, 0.5}, {0, 0}), 0.75);
  EXPECT_EQ(MinVarianceBaseline({1, 0.5}, {0, 0}), 0.75);
}

TEST(AdvantageFp64Test, AGroupCarriesASignalWhereTheSlowFormKeepsIt) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Rewards r = RandomRewards(seed);
    for (size_t i = 0; i < r.reward.size(); ++i) {
      const std::vector<double> group = GroupOf(r, i);
      if (group.empty()) continue;
      EXPECT_EQ(SignalOf(group) == GroupSignal::kSignal, KeepsGroup(group)) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace sluice::slow
