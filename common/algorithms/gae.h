#pragma once

#include <cstdint>
#include <optional>

#include "absl/types/span.h"

namespace sluice {

// Generalised advantage estimation (arXiv 1506.02438) of one sequence of T tokens of the policy.
// Tokens that the policy did not sample are in no column, so they are skipped: they have neither a
// reward nor a value, and do not discount. From the last token to the first, with V_T = bootstrap
// and A_T = 0:
//   delta_t = r_t + gamma V_{t+1} - V_t,   A_t = delta_t + gamma lambda A_{t+1}
// The value target of a token is G_t = A_t + V_t, from the advantages before whitening. Advantages
// and targets may have different lambdas (VAPO, arXiv 2504.05118).
struct GaeRule {
  double gamma = 1;
  double lam = 0.95;
  std::optional<double> lam_value;  // Lambda of the targets. Unset: lam.
  // The lambda of the advantages is 1 - 1 / max(lam_alpha T, 1). Unset: lam.
  std::optional<double> lam_alpha;
};

// The lambda of the advantages of a sequence with this many tokens.
double PolicyLambda(const GaeRule& rule, int64_t tokens);

// Computes the advantages and the value targets, [T] each, from the token rewards and the values
// V_t of the states before each token, [T] each. `bootstrap` is the value of the state after the
// last token; 0 if the sequence ends there. Aborts if sizes differ.
void ComputeGae(const GaeRule& rule, absl::Span<const double> rewards,
                absl::Span<const float> values, double bootstrap, absl::Span<float> advantages,
                absl::Span<float> targets);

}  // namespace sluice
