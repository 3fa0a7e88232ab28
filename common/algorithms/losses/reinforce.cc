#include "common/algorithms/losses/reinforce.h"

namespace sluice {

LossValue Reinforce(const LossToken& token) {
  return {-token.advantage * token.lp_theta, -token.advantage};
}

TokenLoss MakeReinforce(const LossSpec&) { return Reinforce; }

}  // namespace sluice
