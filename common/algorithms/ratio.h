#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"

namespace sluice {

// The trainable tokens of whole sequences, packed: those of sequence i are [offsets[i],
// offsets[i+1]). Log-probs are natural logarithms in fp32, of the sampled token given everything
// before it, all at the sampling temperature.
//
// Legend: B sequences, N tokens in all.
struct PolicyTokens {
  // [B + 1], ascending from 0 to N. Equal neighbours mean an empty sequence.
  absl::Span<const int64_t> offsets;
  absl::Span<const float> lp_theta;   // [N] current policy
  absl::Span<const float> lp_prox;    // [N] proximal policy; empty unless HasProximal(prox)
  absl::Span<const float> lp_behav;   // [N] behaviour policy, as the engine sampled
  absl::Span<const float> lp_ref;     // [N] reference model; empty if no KL term needs it
  absl::Span<const float> advantage;  // [N]
  // [N] 0 where an earlier pass over the step has left the token out (m2po.h); empty: nowhere.
  absl::Span<const uint8_t> allowed;
  // [N] the trainer's log-prob under the version that sampled the token, NaN where it is not known;
  // empty if it is known of none.
  absl::Span<const float> lp_snap = {};
  absl::Span<const float> lp_teacher = {};  // [N] the teacher; empty if there is none (distill.h)

  int64_t sequences() const {
    return offsets.empty() ? 0 : static_cast<int64_t>(offsets.size()) - 1;
  }
  int64_t tokens() const { return static_cast<int64_t>(lp_theta.size()); }
};

// Which policy is the anchor of the update ratio. The proximal policy (`prox`) is the one whose
// neighbourhood the update should stay in.
enum class ProxMode {
  // There is no proximal policy. The anchor is the behaviour policy, and the ratio contains the
  // whole off-policy correction.
  kNone,
  // The anchor is the policy of this very forward pass. The ratio is 1 and the gradient that of
  // REINFORCE. Needs one update per batch.
  kSelf,
  // The anchor is the policy before the first update of the batch. One forward pass then computes
  // its log-probs, which are kept for all updates of the batch.
  kRecompute,
  // The anchor is between the behaviour and the current policy, by the staleness of the token
  // (proximal.h). It needs no forward pass.
  kLoglinear,
  // The anchor is an exponential average of the weights (arXiv 2110.00641).
  kEwma,
  // The anchor is that of kRecompute. Besides, the log-probs of each token under the weights that
  // sampled it (lp_snap) divide the weight w into what trainer and engine disagree about and what
  // is staleness (arXiv 2605.12070; CorrectionRule::split).
  kExact,
};

// Whether the anchor has log-probs of its own.
inline bool HasProximal(ProxMode prox) {
  return prox == ProxMode::kRecompute || prox == ProxMode::kLoglinear || prox == ProxMode::kEwma ||
         prox == ProxMode::kExact;
}
// Whether a forward pass before the first update of the batch computes them.
inline bool NeedsProximalPass(ProxMode prox) {
  return prox == ProxMode::kRecompute || prox == ProxMode::kEwma || prox == ProxMode::kExact;
}

// Log-ratios, and their sums over a sequence, are clamped to [-20, 20] before exp. Outside, the
// gradient is 0.
inline constexpr double kMaxLogRatio = 20;
inline double ClampLogRatio(double log_ratio) {
  return std::clamp(log_ratio, -kMaxLogRatio, kMaxLogRatio);
}

}  // namespace sluice
