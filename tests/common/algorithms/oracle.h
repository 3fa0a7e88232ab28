#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/algorithms/ratio.h"
#include "common/algorithms/registry.h"

namespace sluice {

// Two sequences, of three and two tokens, with advantages and the log-probs of every policy. The
// tests expect numbers for the policy losses, KL terms and diagnostics that were computed from them
// in fp64, apart from the code.
struct F1 {
  std::vector<int64_t> offsets = {0, 3, 5};
  std::vector<float> theta = {-0.5f, -1.2f, -2.0f, -0.9f, -1.6f};
  std::vector<float> prox = {-0.6f, -1.6f, -1.9f, -1.0f, -1.1f};
  std::vector<float> behav = {-0.7f, -1.5f, -2.2f, -0.8f, -1.4f};
  std::vector<float> ref = {-0.4f, -1.4f, -1.8f, -1.1f, -1.3f};
  std::vector<float> advantage = {1, 1, 1, -0.5f, -0.5f};
  std::vector<int32_t> staleness = {2, 1, 0, 1, 1};
  // Of the trainer, under the version of each token: 0.1 above the rollout's.
  std::vector<float> snap = {-0.6f, -1.4f, -2.1f, -0.7f, -1.3f};

  PolicyTokens Tokens(ProxMode mode) const {
    PolicyTokens tokens{offsets, theta, {}, behav, ref, advantage, {}};
    if (HasProximal(mode)) tokens.lp_prox = prox;
    if (mode == ProxMode::kExact) tokens.lp_snap = snap;
    return tokens;
  }
};

// An oracle is a row of expected numbers that were worked out apart from the code. Fails for each
// registry row that has no oracle, so that a new row cannot go untested.
template <typename T>
void ExpectOracleForEveryRow(absl::Span<const Row<T>> rows,
                             const std::vector<std::string>& tested) {
  for (const Row<T>& row : rows) {
    EXPECT_NE(std::find(tested.begin(), tested.end(), row.name), tested.end())
        << "no oracle for " << row.name;
    EXPECT_FALSE(row.doc.empty()) << row.name;
  }
}

// Compares an fp32 result with a number of six digits: within 2e-6, or within 1e-5 of its magnitude
// if that is above 1.
inline void ExpectClose(double value, double wanted, const std::string& what) {
  EXPECT_NEAR(value, wanted, std::abs(wanted) > 1 ? 1e-5 * std::abs(wanted) : 2e-6) << what;
}
template <typename V, typename W>
void ExpectAllClose(const V& values, const W& wanted, const std::string& what) {
  ASSERT_EQ(values.size(), wanted.size()) << what;
  for (size_t i = 0; i < wanted.size(); ++i)
    ExpectClose(values[i], wanted[i], what + " [" + std::to_string(i) + "]");
}

}  // namespace sluice
