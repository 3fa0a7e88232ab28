#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"

namespace sluice {

// Trainable tokens of whole sequences, packed: those of sequence i are [offsets[i], offsets[i+1]).
// Log-probs are natural, fp32, of the sampled token given its prefix, all at the sampling
// temperature.
struct PolicyTokens {
  // [B + 1], ascending from 0 to N; equal neighbours are an empty sequence.
  absl::Span<const int64_t> offsets;
  absl::Span<const float> lp_theta;   // [N] current policy
  absl::Span<const float> lp_prox;    // [N] proximal policy; empty unless prox is recompute
  absl::Span<const float> lp_behav;   // [N] behaviour policy, as the engine sampled
  absl::Span<const float> lp_ref;     // [N] reference; empty where no KL term asks for it
  absl::Span<const float> advantage;  // [N]

  int64_t sequences() const {
    return offsets.empty() ? 0 : static_cast<int64_t>(offsets.size()) - 1;
  }
  int64_t tokens() const { return static_cast<int64_t>(lp_theta.size()); }
};

// Where the anchor of the update ratio comes from.
enum class ProxMode {
  // No prox: the anchor is the behaviour policy, and the ratio carries the whole correction.
  kNone,
  // prox = the policy of this very forward pass: the ratio is 1, the gradient REINFORCE's. One
  // update per batch.
  kSelf,
  kRecompute,  // One forward pass before the first update of the batch, frozen for all its updates.
};

// Log-ratios, and sums of them over a sequence, are clamped to this before exp; the clamp passes no
// gradient outside.
inline constexpr double kMaxLogRatio = 20;
inline double ClampLogRatio(double log_ratio) {
  return std::clamp(log_ratio, -kMaxLogRatio, kMaxLogRatio);
}

}  // namespace sluice
