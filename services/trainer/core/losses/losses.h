#pragma once

#include "absl/types/span.h"
#include "common/algorithms/diagnostics.h"
#include "common/algorithms/ratio.h"
#include "common/algorithms/registry.h"

#include <ATen/core/TensorBody.h>

namespace sluice {

// The terms of a policy update, over the trainable tokens of one micro-batch of whole sequences.
// Each is a scalar: a sum over tokens of coefficient times term, with no denominator inside. The
// step's loss is
//   scale * (policy + kl_coef kl - entropy_coef entropy),   scale = rule.aggregation.step_scale(..)
// over the counts of the whole step; gradients are summed over micro-batches, never averaged. The
// terms are apart so that a streaming trainer can accumulate and scale them apart.
struct LossTerms {
  at::Tensor policy;   // Carries a gradient to lp_theta even where every token is left out.
  at::Tensor kl;       // A plain 0 where rule.kl is null.
  at::Tensor entropy;  // A plain 0 where rule.entropy_coef is 0 or no entropy is given.
  double kl_sum = 0;   // Of the KL values alone, without coefficients: divided by N it is the mean
                       // over tokens to report.
};

// `lp_theta` [N] fp32 with gradient; `entropy` [N] fp32 with gradient, or undefined. `tokens` holds
// the constants on the CPU; its lp_theta is ignored and taken from the tensor. `sequence_weight`
// [B]: rule.aggregation.sequence_weight of each sequence (any value for an empty one). Adds the
// micro-batch to `stats`, whose bad_policy() says that the step must be skipped.
//
// The per-token formulas are those of common/algorithms; autograd starts at lp_theta and entropy.
// On a GPU, lp_theta is read back once and the coefficients go up once. Throws c10::Error where
// shapes disagree.
LossTerms ComputeLossTerms(const LossRule& rule, const at::Tensor& lp_theta,
                           const at::Tensor& entropy, PolicyTokens tokens,
                           absl::Span<const double> sequence_weight, PolicyStats* stats);

// Supervised fine-tuning: sum of -lp_theta [N] (fp32 with gradient), to be divided by the step's
// token count.
at::Tensor SftTerm(const at::Tensor& lp_theta);

}  // namespace sluice
