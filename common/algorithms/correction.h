#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "common/algorithms/ratio.h"

namespace sluice {

// Off-policy weights and masks. They are constants (no gradient) that multiply the policy term of a
// token, never its KL or entropy term.
//
// They are computed from the ratio w = exp(lp_prox - lp_behav); the log-probs are those of
// PolicyTokens (ratio.h). In its place rho = exp(lp_theta - lp_behav), detached, is used if there
// is no proximal policy, if prox is self, or if the rule sets `total_ratio`. Below, w stands for
// the one in use.

// How the weight u of a token is computed.
enum class WeightLevel {
  kNone,  // u = 1
  // u = min(w, cap), truncated importance sampling per token. Low variance, but biased over long
  // sequences.
  kToken,
  // u = min(prod_t w, cap), one value per sequence. Unbiased before truncation, but of high
  // variance.
  kSequence,
};

// How weights and masks are computed.
struct CorrectionRule {
  WeightLevel level = WeightLevel::kToken;
  double cap = 2;   // Upper limit of u. Infinity: none.
  double veto = 0;  // A sequence with any token of w < veto is left out. 0: no veto.
  // Use rho even if there is a proximal policy. This is for losses that have no update ratio of
  // their own: with w alone, they would miss the part of the ratio between the proximal and the
  // current policy when a batch is trained in several updates.
  bool total_ratio = false;
};

// The weights and masks of N tokens.
struct Correction {
  std::vector<float> weight;     // [N] u of each token.
  std::vector<uint8_t> keep;     // [N] 0 if the token gives no policy term, else 1.
  int64_t capped_tokens = 0;     // Tokens whose weight was lowered to the cap.
  int64_t vetoed_sequences = 0;  // Sequences left out by the veto.
  int64_t vetoed_tokens = 0;     // All tokens of these sequences.
  // Tokens whose lp_behav is not finite. Each is left out on its own, and does not enter the
  // product of its sequence.
  int64_t bad_behav = 0;
};

// Computes the weights and masks of all tokens. Aborts if the log-probs differ in number.
Correction ComputeCorrection(const CorrectionRule& rule, const PolicyTokens& tokens);

}  // namespace sluice
