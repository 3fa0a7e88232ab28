#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "tests/common/algorithms/oracle.h"

namespace sluice {

struct KlOracle {
  std::string kind;
  std::vector<double> value, grad;  // Of each token of F1.
  // The expected gradient with respect to the logits. The tokens are sampled from the policy, but
  // for k3_is from kKlBehav.
  std::vector<double> expected;
  bool exact;  // Whether `expected` is the gradient of KL(policy, reference).
};
inline const std::vector<KlOracle>& KlOracles() {
  static const std::vector<KlOracle> oracles = {
      {"k1", {-0.1, 0.2, -0.2, 0.2, -0.3}, {1, 1, 1, 1, 1}, {0, 0, 0}, false},
      {"k2",
       {0.005, 0.02, 0.02, 0.02, 0.045},
       {-0.1, 0.2, -0.2, 0.2, -0.3},
       {0.456047, -0.301201, -0.154846},
       true},
      {"k3",
       {0.005171, 0.018731, 0.021403, 0.018731, 0.049859},
       {-0.105171, 0.181269, -0.221403, 0.181269, -0.349859},
       {0.465241, -0.255272, -0.209969},
       false},
      {"k2+",
       {0.005171, 0.018731, 0.021403, 0.018731, 0.049859},
       {-0.1, 0.2, -0.2, 0.2, -0.3},
       {0.456047, -0.301201, -0.154846},
       true},
      {"k3_is",
       {0.006316, 0.025284, 0.026141, 0.016948, 0.040821},
       {-0.122140, 0.269972, -0.244281, 0.180967, -0.245619},
       {0.456047, -0.301201, -0.154846},
       true},
  };
  return oracles;
}

// A vocabulary of three tokens, on which the policy has the logits (1, 0, -1). These are the
// probabilities of the reference and of the behaviour policy.
inline const std::vector<double> kKlRef = {0.2, 0.5, 0.3};
inline const std::vector<double> kKlBehav = {0.5, 0.25, 0.25};
inline std::vector<double> KlPolicy() {
  const double z = std::exp(1.0) + 1 + std::exp(-1.0);
  return {std::exp(1.0) / z, 1 / z, std::exp(-1.0) / z};
}

}  // namespace sluice
