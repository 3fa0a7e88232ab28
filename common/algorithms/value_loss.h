#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "common/algorithms/policy_loss.h"
#include "common/algorithms/returns.h"

namespace sluice {

// The loss of a critic's prediction v for one token (PPO, arXiv 1707.06347, with the clip of its
// public code), with its derivative by v:
//   l = 0.5 max((v - G)^2, (clip(v, V - e, V + e) - G)^2)
// V is the prediction before the first update of the step, and G the target (gae.h). Where the
// clipped branch is larger, v has left the band in the direction of G, and the gradient is 0.
// `clip` is e; infinity turns the clip off.
LossValue ValueLoss(double v, double old_v, double target, double clip);

// Sums over the tokens of an update, for the loss and what is reported of it. May be copied as
// bytes to another process.
class ValueStats {
 public:
  // A token with prediction `v`, and its ValueLoss().
  void Add(double v, double target, double loss);
  void Merge(const ValueStats& other);

  double loss_sum() const { return loss_; }
  int64_t tokens() const { return targets_.count(); }
  // False if a value, a target or a loss was NaN or infinite.
  bool finite() const;
  // 1 - Var(G - v) / Var(G): 1 if the critic predicts the targets, 0 if it knows no more than their
  // mean. Unset if the targets do not differ.
  std::optional<double> explained_variance() const;

 private:
  double loss_ = 0;
  TokenMoments targets_, errors_;  // Of G, and of G - v.
};

}  // namespace sluice
