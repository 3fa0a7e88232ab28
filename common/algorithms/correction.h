#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/string_view.h"
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
//
// If the rule sets `split`, w = w_mis w_stale with w_mis = exp(lp_snap - lp_behav), what trainer
// and engine disagree about under the same weights, and w_stale, the rest. All bounds below are
// then of w_mis, and the weight is multiplied by w_stale up to its own cap. A token whose lp_snap
// is not known has w_mis = w and w_stale = 1: it is conflated.

// How the weight u of a token is computed.
enum class WeightLevel {
  kNone,  // u = 1
  // u = w within its bounds, truncated importance sampling per token. Low variance, but biased over
  // long sequences.
  kToken,
  // u = prod_t w within its bounds, one value per sequence. Unbiased before truncation, but of high
  // variance.
  kSequence,
};

// What happens to a weight outside of its bounds.
enum class WeightOutside {
  kClip,  // It becomes the bound (truncated importance sampling).
  // Its tokens are left out: masked importance sampling, and IcePop (arXiv 2510.18855) per token.
  kDrop,
};

// How weights and masks are computed. Infinity, or 0 for a lower bound, turns a bound off.
struct CorrectionRule {
  static constexpr double kOff = std::numeric_limits<double>::infinity();
  WeightLevel level = WeightLevel::kToken;
  double low = 0, cap = 2;  // Bounds of u.
  WeightOutside outside = WeightOutside::kClip;
  // Masks of whole sequences:
  double veto = 0, veto_high = kOff;    // A token has w < veto or w > veto_high.
  double geo_low = 0, geo_high = kOff;  // The geometric mean of w is outside of the bounds.
  double k3_max = kOff;                 // The mean of w - 1 - log w is above this.
  // Mask of the tokens with A < 0 of a sequence whose mean of lp_behav - lp_theta is above this
  // (DeepSeek-V3.2, arXiv 2512.02556).
  double opsm = kOff;
  // Use rho even if there is a proximal policy. This is for losses that have no update ratio of
  // their own: with w alone, they would miss the part of the ratio between the proximal and the
  // current policy when a batch is trained in several updates.
  bool total_ratio = false;
  bool split = false;    // Needs lp_snap.
  double stale_cap = 2;  // Upper bound of w_stale, per token or per sequence as `level` says.
};

// Why a token gives no policy term.
enum class Mask { kWeight, kVeto, kGeo, kK3, kOpsm, kM2po };
inline constexpr size_t kMasks = 6;
absl::string_view MaskName(Mask mask);  // weight, veto, geo, k3, opsm, m2po

// What one mask has left out. A token that several masks leave out counts in each of them.
struct MaskCount {
  int64_t tokens = 0;
  int64_t sequences = 0;  // Those with at least one such token.
};

// The weights and masks of N tokens.
struct Correction {
  std::vector<float> weight;  // [N] u of each token.
  std::vector<uint8_t> keep;  // [N] 0 if the token gives no policy term, else 1.
  int64_t capped_tokens = 0;  // Tokens whose weight was moved to a bound.
  int64_t stale_capped = 0;   // Tokens whose w_stale was above its cap.
  // Tokens for which mismatch and staleness are one number: all of them unless the rule sets
  // `split`.
  int64_t conflated = 0;
  std::array<MaskCount, kMasks> masked{};
  // Sum and number of the weights, one per token or per sequence as the level says, for their mean
  // over the step.
  double weight_sum = 0;
  int64_t weights = 0;
  // Tokens whose lp_behav is not finite. Each is left out on its own, and does not enter the
  // product of its sequence.
  int64_t bad_behav = 0;

  const MaskCount& by(Mask mask) const { return masked[static_cast<size_t>(mask)]; }
};

// Computes the weights and masks of all tokens. Aborts if the log-probs differ in number.
Correction ComputeCorrection(const CorrectionRule& rule, const PolicyTokens& tokens);

}  // namespace sluice
