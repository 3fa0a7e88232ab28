#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "common/algorithms/ratio.h"

namespace sluice {

// On-policy distillation: the policy learns, on answers that it has sampled itself, to give tokens
// the probabilities that a teacher gives them. Both forms lower the reverse KL, KL(policy ||
// teacher).
enum class DistillKind {
  kNone,
  // The advantages get a part from the teacher (DistilledAdvantages), and any policy loss learns
  // from them. This must not be done by differentiating lp_theta - lp_teacher, whose expected
  // gradient is 0.
  kSampled,
  // A term of the loss is sum_v p_v (log p_v - log q_v) over the vocabulary, p of the policy and q
  // of the teacher, differentiated as it is. Its mean is over all tokens of the step, whatever the
  // aggregation of the policy loss.
  kFull,
};

// A DistillSpec with its names looked up.
struct DistillRule {
  DistillKind kind = DistillKind::kNone;
  double coef = 1;
  // Of kFull: p and q are renormalised on this many tokens that the teacher finds most likely. 0:
  // the whole vocabulary.
  int64_t top_k = 0;
  // Tokens with exp(lp_theta) - exp(lp_behav) < -trust_region have no distillation. Infinity: off.
  double trust_region = std::numeric_limits<double>::infinity();

  bool operator==(const DistillRule&) const = default;
};

// Whether the trust region keeps a token. One whose lp_behav is not finite is kept.
bool IsInTrustRegion(const DistillRule& rule, double lp_theta, double lp_behav);

// Sums over the tokens of a step, for its metrics.
struct DistillSums {
  // Of kFull the KL itself; of kSampled lp_theta - lp_teacher, whose mean over tokens of the
  // current policy is the KL.
  double kl = 0;
  int64_t left_out = 0;  // Tokens outside of the trust region.

  void Merge(const DistillSums& other) { kl += other.kl, left_out += other.left_out; }
};

// Returns the advantages [N] with the teacher's part (MOPD, arXiv 2601.02780):
//   A_t - coef (lp_anchor - lp_teacher)
// where the anchor is that of `prox` (AnchorOf), as a constant. The difference is clamped as in
// ratio.h, so that one token that the teacher finds impossible does not outweigh all others. Tokens
// outside of the trust region, and those whose lp_anchor is not finite, keep A_t. Aborts if
// lp_teacher is not [N]. Adds to *sums.
std::vector<float> DistilledAdvantages(const DistillRule& rule, ProxMode prox,
                                       const PolicyTokens& tokens, DistillSums* sums);

}  // namespace sluice
