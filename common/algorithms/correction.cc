#include "common/algorithms/correction.h"

#include <algorithm>
#include <cmath>

#include "common/base/status.h"

namespace sluice {
namespace {

// The logarithms of the weight of a token.
struct LogWeights {
  double bounded = 0;  // Of w, or of w_mis.
  double stale = 0;    // Of w_stale; 0 if w is not divided, or cannot be.
  bool conflated = true;
};

// The log-weights of token t. `numerator` is lp_prox, or lp_theta in its place.
LogWeights LogWeightsOf(const CorrectionRule& rule, absl::Span<const float> numerator,
                        const PolicyTokens& tokens, int64_t t) {
  const double from = numerator[t], behav = tokens.lp_behav[t];
  const bool known = rule.split && !tokens.lp_snap.empty() && std::isfinite(tokens.lp_snap[t]);
  if (!known) return {.bounded = from - behav};
  const double snap = tokens.lp_snap[t];
  return {.bounded = snap - behav, .stale = from - snap, .conflated = false};
}

// What the masks need to know about the tokens of one sequence. Tokens whose lp_behav is not finite
// are skipped.
struct SequenceRatios {
  double count = 0;
  double log_sum = 0;    // log prod_t w
  double log_stale = 0;  // log prod_t w_stale
  double k3_sum = 0;     // sum_t (w - 1 - log w)
  double left = 0;       // sum_t (lp_behav - lp_theta)
  bool vetoed = false;
};

SequenceRatios Measure(const CorrectionRule& rule, absl::Span<const float> numerator,
                       const PolicyTokens& tokens, int64_t begin, int64_t end) {
  SequenceRatios s;
  for (int64_t t = begin; t < end; ++t) {
    const double behav = tokens.lp_behav[t];
    if (!std::isfinite(behav)) continue;
    const LogWeights logs = LogWeightsOf(rule, numerator, tokens, t);
    const double clamped = ClampLogRatio(logs.bounded), w = std::exp(clamped);
    ++s.count;
    s.log_sum += logs.bounded;
    s.log_stale += logs.stale;
    s.k3_sum += w - 1 - clamped;
    s.left += behav - tokens.lp_theta[t];
    s.vetoed |= w < rule.veto || w > rule.veto_high;
  }
  return s;
}

// Which masks leave out the whole sequence.
std::array<bool, kMasks> SequenceMasks(const CorrectionRule& rule, const SequenceRatios& s) {
  std::array<bool, kMasks> out{};
  if (s.count == 0) return out;
  const double w = std::exp(ClampLogRatio(s.log_sum));
  const double geo = std::exp(ClampLogRatio(s.log_sum / s.count));
  const auto set = [&](Mask mask, bool value) { out[static_cast<size_t>(mask)] = value; };
  set(Mask::kWeight, rule.level == WeightLevel::kSequence && rule.outside == WeightOutside::kDrop &&
                         (w < rule.low || w > rule.cap));
  set(Mask::kVeto, s.vetoed);
  set(Mask::kGeo, geo < rule.geo_low || geo > rule.geo_high);
  set(Mask::kK3, s.k3_sum / s.count > rule.k3_max);
  return out;
}

}  // namespace

absl::string_view MaskName(Mask mask) {
  switch (mask) {
    case Mask::kWeight: return "weight";
    case Mask::kVeto: return "veto";
    case Mask::kGeo: return "geo";
    case Mask::kK3: return "k3";
    case Mask::kOpsm: return "opsm";
    case Mask::kM2po: return "m2po";
  }
  return "";
}

Correction ComputeCorrection(const CorrectionRule& rule, const PolicyTokens& tokens) {
  const bool total_ratio = rule.total_ratio || tokens.lp_prox.empty();
  const absl::Span<const float> numerator = total_ratio ? tokens.lp_theta : tokens.lp_prox;
  const size_t n = tokens.lp_theta.size();
  SLUICE_CHECK(numerator.size() == n && tokens.lp_behav.size() == n);
  SLUICE_CHECK(tokens.allowed.empty() || tokens.allowed.size() == n);
  SLUICE_CHECK(tokens.lp_snap.empty() || tokens.lp_snap.size() == n);

  Correction out{std::vector<float>(n, 1.0f), std::vector<uint8_t>(n, 1)};
  for (int64_t i = 0; i < tokens.sequences(); ++i) {
    const int64_t begin = tokens.offsets[i], end = tokens.offsets[i + 1];
    const SequenceRatios sequence = Measure(rule, numerator, tokens, begin, end);
    const std::array<bool, kMasks> whole = SequenceMasks(rule, sequence);
    const bool left = sequence.count > 0 && sequence.left / sequence.count > rule.opsm;
    std::array<int64_t, kMasks> dropped{};
    double sequence_weight = 1;

    for (int64_t t = begin; t < end; ++t) {
      const bool finite = std::isfinite(tokens.lp_behav[t]);
      out.bad_behav += !finite;
      const LogWeights logs = LogWeightsOf(rule, numerator, tokens, t);
      out.conflated += logs.conflated;

      std::array<bool, kMasks> drop = whole;
      drop[static_cast<size_t>(Mask::kOpsm)] = left && tokens.advantage[t] < 0;
      drop[static_cast<size_t>(Mask::kM2po)] = !tokens.allowed.empty() && !tokens.allowed[t];
      // Tokens that a mask leaves out get weights and count as capped too; `keep` leaves them out.
      if (finite && rule.level != WeightLevel::kNone) {
        const bool token_level = rule.level == WeightLevel::kToken;
        const double w = std::exp(ClampLogRatio(token_level ? logs.bounded : sequence.log_sum));
        const double w_stale =
            std::exp(ClampLogRatio(token_level ? logs.stale : sequence.log_stale));
        const double stale = rule.split ? std::min(w_stale, rule.stale_cap) : 1;
        const bool outside = w < rule.low || w > rule.cap;
        out.stale_capped += rule.split && w_stale > rule.stale_cap;
        if (rule.outside == WeightOutside::kDrop) {
          drop[static_cast<size_t>(Mask::kWeight)] = outside;
          out.weight[t] = outside ? 0 : static_cast<float>(w * stale);
        } else {
          out.capped_tokens += outside;
          out.weight[t] = static_cast<float>(std::clamp(w, rule.low, rule.cap) * stale);
        }
        sequence_weight = out.weight[t];
      }
      if (rule.level == WeightLevel::kToken) out.weight_sum += out.weight[t], ++out.weights;

      out.keep[t] = finite;
      for (size_t m = 0; m < kMasks; ++m) {
        dropped[m] += drop[m];
        if (drop[m]) out.keep[t] = 0;
      }
    }
    if (rule.level == WeightLevel::kSequence && end > begin)
      out.weight_sum += sequence_weight, ++out.weights;
    for (size_t m = 0; m < kMasks; ++m) {
      out.masked[m].tokens += dropped[m];
      out.masked[m].sequences += dropped[m] > 0;
    }
  }
  return out;
}

}  // namespace sluice
