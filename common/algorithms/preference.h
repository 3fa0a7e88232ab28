#pragma once

namespace sluice {

// The loss of one pair of answers, and its derivative by the margin.
struct PairLoss {
  double loss = 0, slope = 0;
};

// Direct preference optimisation (DPO, arXiv:2305.18290, equation 7):
//   loss = -(1 - smoothing) log sigmoid(beta margin) - smoothing log sigmoid(-beta margin)
// `margin` is how much more than the reference policy the policy prefers the chosen answer, in
// nats: (lp_theta - lp_ref) of the chosen answer less that of the rejected one, each summed over
// the answer's tokens. `smoothing` is the probability that a pair's label is wrong (conservative
// DPO). The gradient by each token's log-prob is `slope` in the chosen answer, and -`slope` in the
// rejected one.
PairLoss DpoLoss(double margin, double beta, double smoothing);

}  // namespace sluice
