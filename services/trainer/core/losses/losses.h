#pragma once

#include <optional>

#include "absl/types/span.h"
#include "common/algorithms/diagnostics.h"
#include "common/algorithms/ratio.h"
#include "common/algorithms/registry.h"
#include "common/algorithms/value_loss.h"

#include <ATen/core/TensorBody.h>

namespace sluice {

// The terms of a policy update, over the trainable tokens of one micro-batch of whole sequences.
// Each term is a scalar: a sum over tokens of coefficient times term, without a denominator. The
// step's loss is
//   scale * (policy + kl_coef kl - entropy_coef entropy),   scale = rule.aggregation.step_scale(..)
// where scale uses the counts of the whole step. Gradients are summed over micro-batches, never
// averaged. The terms are separate, so that a streaming trainer can accumulate and scale them
// separately.
struct LossTerms {
  at::Tensor policy;   // Has a gradient for lp_theta even if every token is left out.
  at::Tensor kl;       // A 0 without gradient if rule.kl is null.
  at::Tensor entropy;  // A 0 without gradient if rule.entropy_coef is 0 or no entropy is given.
  // Sum of the KL values without coefficients; divided by N it is the mean to report.
  double kl_sum = 0;
};

// Computes the terms of one micro-batch of N tokens and B sequences.
//
// `lp_theta` [N] is fp32 with gradient; `entropy` [N] is fp32 with gradient, or undefined. `tokens`
// has the constants on the CPU. Its lp_theta is ignored, because the tensor is used; so is its
// lp_prox if prox is loglinear, which computes it from `staleness` [N] (versions). If prox is
// exact, its lp_snap need not have tokens of staleness 0, whose own version is the present one.
// `sequence_weight` [B] is rule.aggregation.sequence_weight of each sequence (any value for an
// empty one). The micro-batch is added to `stats`; if stats->bad_policy() > 0, the step must be
// skipped.
//
// If rule.distill is that of sampled tokens, the advantages get the teacher's part
// (DistilledAdvantages) first, which is added to *distill, and `stats` counts the result.
//
// The per-token formulas are those of common/algorithms; autograd starts at lp_theta and entropy.
// On a GPU, lp_theta is copied to the host once and the coefficients to the device once. Throws
// c10::Error if shapes disagree.
LossTerms ComputeLossTerms(const LossRule& rule, const at::Tensor& lp_theta,
                           const at::Tensor& entropy, PolicyTokens tokens,
                           absl::Span<const double> sequence_weight, PolicyStats* stats,
                           absl::Span<const int32_t> staleness = {},
                           DistillSums* distill = nullptr);

// The term of a critic: the sum of ValueLoss() of the predictions `values` [N] (fp32 with
// gradient), which is to be divided by the step's number of tokens. `old_values` and `targets` are
// [N]. `clip` is unset if values may move freely. The tokens are added to *stats. Throws c10::Error
// if the shapes disagree.
at::Tensor ValueTerm(const at::Tensor& values, absl::Span<const float> old_values,
                     absl::Span<const float> targets, std::optional<double> clip,
                     ValueStats* stats);

// The term of supervised fine-tuning: the sum of -lp_theta [N] (fp32 with gradient), which is to be
// divided by the step's number of tokens.
at::Tensor SftTerm(const at::Tensor& lp_theta);

}  // namespace sluice
