#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/common/algorithms/oracle.h"

namespace sluice {

// Two groups of one step: P has the rewards (1, 0, 0.5, 1) and Q has (0, 1).
inline const std::vector<double> kRewardsOfPAndQ = {1, 0, 0.5, 1, 0, 1};
inline const std::vector<int64_t> kGroupsOfPAndQ = {7, 7, 7, 7, 3, 3};

struct AdvantageOracle {
  std::string kind;
  std::vector<double> wanted;  // The advantages of P, then those of Q.
};
inline const std::vector<AdvantageOracle>& AdvantageOracles() {
  static const std::vector<AdvantageOracle> oracles = {
      {"grpo", {0.783348, -1.305580, -0.261116, 0.783348, -0.707106, 0.707106}},
      {"dr_grpo", {0.375, -0.625, -0.125, 0.375, -0.5, 0.5}},
      {"rloo", {0.5, -0.833333, -0.166667, 0.5, -1, 1}},
      {"pool_loo", {0.917661, -1.529435, -0.305887, 0.917661, -1.835323, 1.835323}},
      {"lite_ppo", {0.769482, -1.282470, -0.256494, 0.769482, -1.025976, 1.025976}},
      {"maxrl", {0.6, -1, -0.2, 0.6, -1, 1}},
      {"reinforce", kRewardsOfPAndQ},
      {"batch", {0.847578, -1.186609, -0.169516, 0.847578, -1.186609, 0.847578}},
      // What follows for single tokens has its numbers in returns_test.cc, gae_test.cc and
      // min_variance_test.cc.
      {"reinforce_pp", kRewardsOfPAndQ},
      {"gae", kRewardsOfPAndQ},
      {"reinforce_pp_baseline", {0.375, -0.625, -0.125, 0.375, -0.5, 0.5}},
      {"none", {0, 0, 0, 0, 0, 0}},
      {"min_variance", {0.904534, -1.507557, -0.301511, 0.904534, -1, 1}},
  };
  return oracles;
}

}  // namespace sluice
