#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "common/algorithms/ratio.h"

namespace sluice {

// Off-policy weights and masks: constants that multiply the policy term of a token (never its KL or
// entropy terms). They are made of w = exp(lp_prox - lp_behav), or of rho = exp(lp_theta -
// lp_behav), detached, where there is no prox, prox is self, or the rule says so.

enum class WeightLevel {
  kNone,  // u = 1
  // u = min(w, cap): truncated importance sampling per token; low variance, biased over long
  // sequences
  kToken,
  // u = min(prod_t w, cap), one value per sequence: unbiased before truncation, high variance
  kSequence,
};

struct CorrectionRule {
  WeightLevel level = WeightLevel::kToken;
  double cap = 2;   // Truncation of u; infinity: none.
  double veto = 0;  // A sequence with any token of w < veto is left out; 0: none.
  // Use rho in place of w even where there is a prox. For losses without an update ratio of their
  // own: with w alone, the part of the ratio from prox to the current policy would be missing once
  // a batch is trained in several updates.
  bool total_ratio = false;
};

struct Correction {
  std::vector<float> weight;     // [N] u
  std::vector<uint8_t> keep;     // [N] 0: the token gives no policy term
  int64_t capped_tokens = 0;     // Tokens whose weight the cap lowered.
  int64_t vetoed_sequences = 0;  // Sequences left out by the veto, and their tokens.
  int64_t vetoed_tokens = 0;
  // Tokens whose lp_behav is not finite: left out one by one, and in no product.
  int64_t bad_behav = 0;
};

Correction Correct(const CorrectionRule& rule, const PolicyTokens& tokens);

}  // namespace sluice
