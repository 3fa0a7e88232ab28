#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/common/algorithms/slow/batch.h"

// Section 3 of the sheet: advantages from the rewards R [B] and the group of each sequence.
namespace sluice::slow {

struct Rewards {
  std::vector<double> reward;
  std::vector<int64_t> group;
};

// The finite rewards of sequence i's group; `without_i` leaves out its own.
inline std::vector<double> GroupOf(const Rewards& r, size_t i, bool without_i = false) {
  std::vector<double> out;
  for (size_t j = 0; j < r.reward.size(); ++j) {
    if (r.group[j] != r.group[i] || !std::isfinite(r.reward[j])) continue;
    if (!(without_i && j == i)) out.push_back(r.reward[j]);
  }
  return out;
}

// The edge rules that all group estimators share: a group of one, a group without spread and a
// reward that is not finite have no advantage.
inline bool HasSignal(const Rewards& r, size_t i) {
  const std::vector<double> members = GroupOf(r, i);
  return std::isfinite(r.reward[i]) && members.size() > 1 && Std(members, 1) > 1e-6;
}

// Calls value(i) for each sequence whose group has a signal. The others have 0.
template <typename Value>
std::vector<double> ByGroup(const Rewards& r, const Value& value) {
  std::vector<double> out(r.reward.size(), 0.0);
  for (size_t i = 0; i < out.size(); ++i) {
    if (HasSignal(r, i)) out[i] = value(i);
  }
  return out;
}

// 3.1
inline std::vector<double> Grpo(const Rewards& r) {
  return ByGroup(r, [&](size_t i) {
    return (r.reward[i] - Mean(GroupOf(r, i))) / (Std(GroupOf(r, i), 1) + 1e-6);
  });
}

// 3.2
inline std::vector<double> DrGrpo(const Rewards& r) {
  return ByGroup(r, [&](size_t i) { return r.reward[i] - Mean(GroupOf(r, i)); });
}

// 3.3
inline std::vector<double> Rloo(const Rewards& r) {
  return ByGroup(r, [&](size_t i) { return r.reward[i] - Mean(GroupOf(r, i, true)); });
}

// The sigma of 3.7's scale `pooled`. Groups of one contribute nothing.
inline double PooledSigma(const Rewards& r) {
  double squares = 0, freedom = 0;
  for (size_t i = 0; i < r.reward.size(); ++i) {
    if (!std::isfinite(r.reward[i])) continue;
    const std::vector<double> members = GroupOf(r, i);
    const double n = static_cast<double>(members.size());
    if (n < 2) continue;
    squares += (r.reward[i] - Mean(members)) * (r.reward[i] - Mean(members));
    freedom += (n - 1) / n;  // So that the members of a group add n_g - 1.
  }
  return freedom < 0.25 ? 0 : std::sqrt(squares / freedom);
}

// 3.7 with (group_loo, pooled)
inline std::vector<double> PoolLoo(const Rewards& r) {
  const double sigma = PooledSigma(r);
  if (sigma <= 1e-6) return std::vector<double>(r.reward.size(), 0.0);
  return ByGroup(
      r, [&](size_t i) { return (r.reward[i] - Mean(GroupOf(r, i, true))) / (sigma + 1e-6); });
}

// 3.7 with (group, batch). The c_i of a group of one is no comparison, and enters no statistic.
inline std::vector<double> LitePpo(const Rewards& r) {
  std::vector<double> centred;
  for (size_t i = 0; i < r.reward.size(); ++i) {
    if (std::isfinite(r.reward[i]) && GroupOf(r, i).size() > 1)
      centred.push_back(r.reward[i] - Mean(GroupOf(r, i)));
  }
  const double sigma = centred.size() < 2 ? 0 : Std(centred, 1);
  if (sigma <= 1e-6) return std::vector<double>(r.reward.size(), 0.0);
  return ByGroup(r, [&](size_t i) { return (r.reward[i] - Mean(GroupOf(r, i))) / (sigma + 1e-6); });
}

// The finite rewards of the step.
inline std::vector<double> FiniteRewards(const Rewards& r) {
  std::vector<double> out;
  for (const double v : r.reward) {
    if (std::isfinite(v)) out.push_back(v);
  }
  return out;
}

// 3.7 with (batch, batch)
inline std::vector<double> BatchCentred(const Rewards& r) {
  const std::vector<double> finite = FiniteRewards(r);
  std::vector<double> out(r.reward.size(), 0.0);
  if (finite.size() < 2 || Std(finite, 1) <= 1e-6) return out;
  for (size_t i = 0; i < out.size(); ++i) {
    if (std::isfinite(r.reward[i])) out[i] = (r.reward[i] - Mean(finite)) / (Std(finite, 1) + 1e-6);
  }
  return out;
}

// R_i itself, for REINFORCE without a baseline.
inline std::vector<double> RawRewards(const Rewards& r) {
  std::vector<double> out = r.reward;
  for (double& v : out) v = std::isfinite(v) ? v : 0;
  return out;
}

// 3.9. Rewards must be at least 0, so a negative one counts as bad.
inline std::vector<double> MaxRl(Rewards r) {
  for (double& v : r.reward) v = v < 0 ? std::numeric_limits<double>::quiet_NaN() : v;
  return ByGroup(r, [&](size_t i) {
    const double mean = Mean(GroupOf(r, i));
    return mean > 0 ? (r.reward[i] - mean) / mean : 0;
  });
}

// 9.2: the baseline that minimises sum_i Om_i (R_i - b)^2, from the members' Om_i.
inline double MinVariance(const std::vector<double>& reward, const std::vector<double>& om) {
  double weighted = 0, sum = 0;
  for (size_t i = 0; i < reward.size(); ++i) weighted += om[i] * reward[i], sum += om[i];
  return sum <= 1e-30 ? Mean(reward) : weighted / sum;
}

// A_i of 9.2 with norm_by_std. `om` is [B].
inline std::vector<double> MinVarianceAdvantages(const Rewards& r, const std::vector<double>& om) {
  return ByGroup(r, [&](size_t i) {
    std::vector<double> reward, weight;
    for (size_t j = 0; j < r.reward.size(); ++j) {
      if (r.group[j] != r.group[i] || !std::isfinite(r.reward[j])) continue;
      reward.push_back(r.reward[j]);
      weight.push_back(om[j]);
    }
    const double std0 = Std(reward, 0);
    return (r.reward[i] - MinVariance(reward, weight)) / (std0 > 1e-8 ? std0 : 1);
  });
}

// The advantages of sequences by the job key `advantage.kind`; empty for an unknown one. Those of
// single tokens start from a sequence's. The baseline of minimum variance is the mean where all
// Om_i are equal.
inline std::vector<double> AdvantagesByName(const std::string& kind, const Rewards& r) {
  if (kind == "grpo") return Grpo(r);
  if (kind == "dr_grpo" || kind == "reinforce_pp_baseline") return DrGrpo(r);
  if (kind == "rloo") return Rloo(r);
  if (kind == "pool_loo") return PoolLoo(r);
  if (kind == "lite_ppo") return LitePpo(r);
  if (kind == "maxrl") return MaxRl(r);
  if (kind == "batch") return BatchCentred(r);
  if (kind == "none") return std::vector<double>(r.reward.size(), 0.0);
  if (kind == "reinforce" || kind == "reinforce_pp" || kind == "gae") return RawRewards(r);
  const std::vector<double> ones(r.reward.size(), 1.0);
  return kind == "min_variance" ? MinVarianceAdvantages(r, ones) : std::vector<double>();
}

// The whitening of 3.4, over all tokens of the step.
inline Matrix Whiten(const Flags& mask, const Matrix& values) {
  const std::vector<double> all = Select(mask, values);
  Matrix out = Like(mask);
  if (all.size() < 2) return out;
  ForEachToken(mask, [&](size_t i, size_t t) {
    out[i][t] = (values[i][t] - Mean(all)) / std::sqrt(Std(all, 1) * Std(all, 1) + 1e-8);
  });
  return out;
}

// The token form of 2.5: what the KL to the reference takes from the reward of each token.
inline Matrix KlRewards(const Batch& b, const Matrix& anchor, double beta) {
  Matrix out = Like(b.mask);
  ForEachToken(b.mask,
               [&](size_t i, size_t t) { out[i][t] = -beta * (anchor[i][t] - b.ref[i][t]); });
  return out;
}

// The sequence form of 2.5: R_i less beta times the sum of its tokens' k1.
inline std::vector<double> RewardsLessKl(const Batch& b, const Matrix& anchor, double beta,
                                         std::vector<double> reward) {
  ForEachToken(b.mask,
               [&](size_t i, size_t t) { reward[i] -= beta * (anchor[i][t] - b.ref[i][t]); });
  return reward;
}

// Section 2.1 with rewards of single tokens: `earned` [B,S] is what each token has earned of R_i.
// No later token can have caused it, so where the mask is 0 it goes to the last trained token
// before. Returns rew [B,S] without R_i itself, as Returns() adds that to the last token.
inline Matrix TokenRewards(const Flags& mask, const Matrix& earned) {
  Matrix out = Like(mask);
  for (size_t i = 0; i < mask.size(); ++i) {
    size_t last = 0;
    for (size_t t = 0; t < mask[i].size(); ++t) {
      if (mask[i][t]) last = t;
    }
    for (size_t t = 0; t < mask[i].size(); ++t) {
      if (earned[i][t] == 0) continue;
      size_t owner = t + 1;
      while (owner > 0 && !mask[i][owner - 1]) --owner;
      if (owner > 0) out[i][owner - 1] += earned[i][t];
      out[i][last] -= earned[i][t];
    }
  }
  return out;
}

// 12.1: the factor of each token. `action` [B,S] is the number of the action in its sequence that
// the token belongs to, and `duration` [B,S] that action's wall time.
inline Matrix DurationFactors(const Flags& mask, const std::vector<std::vector<int>>& action,
                              const Matrix& duration) {
  const auto known = [](double dt) { return std::isfinite(dt) && dt > 0; };
  std::map<std::pair<size_t, int>, double> actions;
  ForEachToken(mask, [&](size_t i, size_t t) {
    if (known(duration[i][t])) actions[{i, action[i][t]}] = duration[i][t];
  });
  std::vector<double> times;
  for (const auto& [place, dt] : actions) times.push_back(dt);
  Matrix out = Like(mask, 1.0);
  ForEachToken(mask, [&](size_t i, size_t t) {
    if (known(duration[i][t])) out[i][t] = std::min(duration[i][t] / Mean(times), 10.0);
  });
  return out;
}

// G of 3.4: rew[i,t] + gamma G[i,t+1] over the policy's tokens. R_i is the reward of the last one.
inline Matrix Returns(const Flags& mask, Matrix token_reward, const std::vector<double>& reward,
                      double gamma) {
  Matrix out = Like(mask);
  for (size_t i = 0; i < mask.size(); ++i) {
    double next = 0;
    bool last = true;
    for (size_t t = mask[i].size(); t-- > 0;) {
      if (!mask[i][t]) continue;
      next = token_reward[i][t] + (last ? reward[i] : 0) + gamma * next;
      out[i][t] = next;
      last = false;
    }
  }
  return out;
}

// 3.4
inline Matrix ReinforcePlusPlus(const Batch& b, const Matrix& anchor, double beta, double gamma,
                                const std::vector<double>& reward) {
  return Whiten(b.mask, Returns(b.mask, KlRewards(b, anchor, beta), reward, gamma));
}

// 3.5
inline Matrix ReinforcePlusPlusBaseline(const Batch& b, const Matrix& anchor, double beta,
                                        const std::vector<double>& reward) {
  const std::vector<double> centred = DrGrpo({reward, b.group});
  Matrix values = KlRewards(b, anchor, beta);
  ForEachToken(b.mask, [&](size_t i, size_t t) { values[i][t] += centred[i]; });
  return Whiten(b.mask, values);
}

// 3.6: advantages and value targets from the token rewards, without the whitening. `boot` [B] is
// the value of the state after the last token. Masked positions carry the state on.
struct GaeResult {
  Matrix advantage, target;
};
inline GaeResult Gae(const Flags& mask, const Matrix& token_reward, const Matrix& value,
                     const std::vector<double>& boot, double gamma, double lam_policy,
                     double lam_value) {
  GaeResult out{Like(mask), Like(mask)};
  for (size_t i = 0; i < mask.size(); ++i) {
    for (const bool of_targets : {false, true}) {
      double next_value = boot[i], acc = 0;
      for (size_t t = mask[i].size(); t-- > 0;) {
        if (!mask[i][t]) continue;
        const double delta = token_reward[i][t] + gamma * next_value - value[i][t];
        acc = delta + gamma * (of_targets ? lam_value : lam_policy) * acc;
        if (of_targets) out.target[i][t] = acc + value[i][t];
        else out.advantage[i][t] = acc;
        next_value = value[i][t];
      }
    }
  }
  return out;
}

// 3.6, last line.
inline double AdaptedLambda(double alpha, double tokens) {
  return 1 - 1 / std::max(alpha * tokens, 1.0);
}

// 2.5, last paragraph.
inline double AdaptedBeta(double beta, double kl, double target, double n, double horizon) {
  return beta * (1 + std::min(0.2, std::max(-0.2, kl / target - 1)) * n / horizon);
}

// 2.2
inline double SoftOverlongPenalty(double length, double limit, double buffer, double penalty) {
  if (buffer == 0) return 0;
  return std::min(0.0, std::max(-penalty, -(length - (limit - buffer)) / buffer * penalty));
}

// 2.4
inline bool KeepsGroup(const std::vector<double>& task_reward) {
  return task_reward.size() > 1 && Std(task_reward, 1) > 1e-6;
}

}  // namespace sluice::slow
