#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/algorithms/diagnostics.h"
#include "common/algorithms/distill.h"
#include "common/algorithms/m2po.h"
#include "common/algorithms/min_variance.h"
#include "common/algorithms/proximal.h"
#include "common/algorithms/returns.h"
#include "common/base/splitmix.h"
#include "common/optim/adamw.h"
#include "common/optim/grad_norm.h"
#include "tests/common/algorithms/oracle.h"

// Runs the whole chain (advantages, corrections, loss, aggregation, clipping, AdamW) on a bandit
// with two arms. Arm 1 gives reward 1, and the policy chooses it one time in ten at first. A step
// has eight groups of eight, sampled with weights that are `lag` steps old. That it learns shows
// that no sign is flipped. Wrong weights and clips are caught by the tests that compare with worked
// numbers.
namespace sluice {

inline constexpr int kBanditSteps = 200, kBanditGroups = 8, kBanditGroupSize = 8;

struct BanditLogits {
  float z[2];
  double P1() const { return 1 / (1 + std::exp(double{z[0]} - z[1])); }
  double LogProb(int arm) const { return std::log(arm == 1 ? P1() : 1 - P1()); }
};
inline const BanditLogits kBanditStart = {{0, std::log(1.0f / 9)}};

// Whether the algorithm learns from a teacher alone, so that it finds no arm by its rewards.
inline bool NeedsTeacher(const AlgorithmSpec& spec) {
  return IgnoresRewards(ResolveAdvantage(spec.advantage).value());
}

// Subtracts the baseline of minimum variance from the advantages of whole groups. The gradient of
// an answer's log-prob has the components s and -s.
inline void SubtractBaselines(const std::vector<int>& arm, const Correction& correction,
                              const BanditLogits& policy, std::vector<float>* a) {
  for (size_t first = 0; first < arm.size(); first += kBanditGroupSize) {
    std::vector<double> power, group;
    for (size_t i = first; i < first + kBanditGroupSize; ++i) {
      const double s = arm[i] - policy.P1(), u = correction.weight[i];
      power.push_back(u * u * 2 * s * s);
      group.push_back((*a)[i]);
    }
    // A group of equal rewards has only zeros, and so a baseline of 0.
    const double baseline = MinVarianceBaseline(group, power);
    for (size_t i = first; i < first + kBanditGroupSize; ++i)
      (*a)[i] -= static_cast<float>(baseline);
  }
}

// Adds the gradient of one step to `gradient` [2]. Returns false if there is nothing to train on.
inline bool BanditGradient(const AlgorithmSpec& spec, const LossRule& rule,
                           const BanditLogits& policy, const BanditLogits& behav,
                           const BanditLogits& average, double teacher, int staleness,
                           SplitMix64* random, float* gradient, double* ess) {
  std::vector<int> arm;
  std::vector<double> rewards;
  std::vector<int64_t> groups;
  for (int g = 0; g < kBanditGroups; ++g) {
    std::vector<double> group_rewards;
    std::vector<int> arms;
    for (int i = 0; i < kBanditGroupSize; ++i) {
      arms.push_back(random->Uniform() < behav.P1() ? 1 : 0);
      group_rewards.push_back(arms.back());
    }

    if (spec.advantage.signal_filter && SignalOf(group_rewards) != GroupSignal::kSignal) continue;
    arm.insert(arm.end(), arms.begin(), arms.end());
    rewards.insert(rewards.end(), group_rewards.begin(), group_rewards.end());
    groups.insert(groups.end(), kBanditGroupSize, g);
  }

  if (arm.empty()) return false;

  const int64_t n = static_cast<int64_t>(arm.size());
  const AdvantageRule advantages = ResolveAdvantage(spec.advantage).value();
  std::vector<double> advantage = ComputeAdvantages(advantages, rewards, groups).advantage;
  // An answer is one token, so its return is its reward. The critic's value of the only state is
  // the same for all answers, so that whitening removes it.
  if (advantages.tokens != TokenRule::kSame) {
    TokenMoments moments;
    for (const double v : advantage) moments.Add(v);
    for (double& v : advantage) v = moments.Whiten(v);
  }
  std::vector<int64_t> offsets = {0};
  std::vector<float> theta, behaviour, ref, mean, taught, a(advantage.begin(), advantage.end());

  for (int x : arm) {
    offsets.push_back(offsets.back() + 1);
    theta.push_back(static_cast<float>(policy.LogProb(x)));
    behaviour.push_back(static_cast<float>(behav.LogProb(x)));
    ref.push_back(static_cast<float>(kBanditStart.LogProb(x)));
    mean.push_back(static_cast<float>(average.LogProb(x)));
    taught.push_back(static_cast<float>(std::log(x == 1 ? teacher : 1 - teacher)));
  }

  PolicyTokens tokens{offsets, theta, {}, behaviour, ref, a, {}};
  if (rule.prox == ProxMode::kRecompute || rule.prox == ProxMode::kExact) tokens.lp_prox = theta;
  // Trainer and rollout agree about the version that sampled.
  if (rule.prox == ProxMode::kExact) tokens.lp_snap = behaviour;
  if (rule.prox == ProxMode::kEwma) tokens.lp_prox = mean;
  const std::vector<float> loglinear =
      LoglinearProximal(theta, behaviour, std::vector<int32_t>(n, staleness));
  if (rule.prox == ProxMode::kLoglinear) tokens.lp_prox = loglinear;
  std::vector<float> distilled;
  if (teacher > 0) {
    DistillSums sums;
    tokens.lp_teacher = taught;
    distilled = DistilledAdvantages(ResolveDistill(spec.distill).value(), rule.prox, tokens, &sums);
    tokens.advantage = distilled;
  }
  std::vector<uint8_t> allowed;
  if (rule.m2po > 0) {
    allowed = M2poKeep(theta, behaviour, tokens.advantage,
                       ComputeCorrection(rule.correction, tokens).keep, rule.m2po);
    tokens.allowed = allowed;
  }
  const Correction correction = ComputeCorrection(rule.correction, tokens);
  if (advantages.min_variance) SubtractBaselines(arm, correction, policy, &a);
  PolicyStats stats;
  stats.Add(tokens, correction, {});
  *ess = stats.Metrics()->ess_seq;
  std::vector<float> value(n), grad(n), kl(n, 0.0f);
  ComputePolicyLoss(rule.loss, rule.prox, tokens, correction, absl::MakeSpan(value),
                    absl::MakeSpan(grad));
  if (rule.kl != nullptr) ComputeKlLoss(rule.kl, tokens, absl::MakeSpan(value), absl::MakeSpan(kl));

  const double c = rule.aggregation.sequence_weight(1, kBanditGroupSize) *
                   rule.aggregation.step_scale(
                       {.tokens = n, .sequences = n, .prompts = n / kBanditGroupSize}, 1);
  for (int64_t t = 0; t < n; ++t) {
    const double score1 = arm[t] - policy.P1();  // d lp / d z[1], where z[1] is the logit of arm 1.
    gradient[1] += static_cast<float>(c * (grad[t] + rule.kl_coef * kl[t]) * score1);
    gradient[0] -= static_cast<float>(c * (grad[t] + rule.kl_coef * kl[t]) * score1);
  }

  return true;
}

// The last step at which a preset may first be above 0.95. M2PO leaves out more the older the data
// are: at a lag of 16 its step 104 to 107, where the others are there by 71.
inline int LatestAbove(const AlgorithmSpec& spec, int lag) {
  return spec.loss.m2po.has_value() && lag > 4 ? 110 : 71;
}

struct Curve {
  std::vector<double> p;  // [kBanditSteps] Probability of arm 1 after each step.
  double final_p = 0;
  int first_above = kBanditSteps;  // Steps until the policy chooses arm 1 with p > 0.95.
};

// `teacher`: the probability that a teacher gives arm 1; 0 if there is none.
inline Curve TrainBandit(const AlgorithmSpec& spec, int lag, uint64_t seed, double teacher = 0) {
  const LossRule rule = ResolveLoss(spec.loss, lag).value();
  SplitMix64 random(seed);
  std::vector<BanditLogits> history = {kBanditStart};
  BanditLogits average = kBanditStart;
  float m[2] = {}, v[2] = {};
  Curve curve;
  int64_t updates = 0;

  for (int step = 0; step < kBanditSteps; ++step) {
    BanditLogits policy = history.back();
    float gradient[2] = {};
    double ess = 1;
    const int staleness = std::min(step, lag);
    if (BanditGradient(spec, rule, policy, history[step - staleness], average, teacher, staleness,
                       &random, gradient, &ess)) {
      const double factor = ClipFactor(std::sqrt(SumOfSquares(gradient, 2)), 1.0);
      const double lr = 0.05 * EssFactor(ess, rule.ess_base, rule.ess_power);
      AdamWStep({.weight_decay = 0}, ++updates, lr, false, factor, 2, gradient, policy.z, m, v);
      const EwmaWeights weights = EwmaAt(rule.ewma, updates);
      for (int i = 0; i < 2; ++i) {
        average.z[i] = static_cast<float>(weights.old_weight * average.z[i] +
                                          weights.new_weight * policy.z[i]);
      }
    }
    history.push_back(policy);
    curve.p.push_back(policy.P1());
    if (policy.P1() > 0.95) curve.first_above = std::min(curve.first_above, step + 1);
  }

  curve.final_p = history.back().P1();
  return curve;
}

}  // namespace sluice
