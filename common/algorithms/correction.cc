#include "common/algorithms/correction.h"

#include <cmath>

#include "common/base/status.h"

namespace sluice {
namespace {

// The sum and the veto of one sequence's tokens [begin, end). Tokens whose lp_behav is not finite
// are skipped.
struct SequenceWeights {
  double log_sum = 0;   // log prod_t w
  bool vetoed = false;  // A token has w < veto.
};

SequenceWeights MeasureSequence(const CorrectionRule& rule, absl::Span<const float> numerator,
                                absl::Span<const float> lp_behav, int64_t begin, int64_t end) {
  SequenceWeights s;
  for (int64_t t = begin; t < end; ++t) {
    if (!std::isfinite(lp_behav[t])) continue;
    const double log_w = static_cast<double>(numerator[t]) - lp_behav[t];
    s.log_sum += log_w;
    s.vetoed |= rule.veto > 0 && std::exp(ClampLogRatio(log_w)) < rule.veto;
  }
  return s;
}

}  // namespace

Correction ComputeCorrection(const CorrectionRule& rule, const PolicyTokens& tokens) {
  const bool total_ratio = rule.total_ratio || tokens.lp_prox.empty();
  const absl::Span<const float> numerator = total_ratio ? tokens.lp_theta : tokens.lp_prox;
  const size_t n = tokens.lp_theta.size();
  SLUICE_CHECK(numerator.size() == n && tokens.lp_behav.size() == n);

  Correction out{std::vector<float>(n, 1.0f), std::vector<uint8_t>(n, 1)};
  for (int64_t i = 0; i < tokens.sequences(); ++i) {
    const int64_t begin = tokens.offsets[i], end = tokens.offsets[i + 1];
    const SequenceWeights sequence = MeasureSequence(rule, numerator, tokens.lp_behav, begin, end);
    if (sequence.vetoed) {
      ++out.vetoed_sequences;
      out.vetoed_tokens += end - begin;
    }
    for (int64_t t = begin; t < end; ++t) {
      const bool finite = std::isfinite(tokens.lp_behav[t]);
      out.bad_behav += !finite;
      out.keep[t] = finite && !sequence.vetoed;
      // Tokens of a vetoed sequence get weights and count as capped too; `keep` leaves them out.
      if (!finite || rule.level == WeightLevel::kNone) continue;
      const double log_w = rule.level == WeightLevel::kToken
                               ? static_cast<double>(numerator[t]) - tokens.lp_behav[t]
                               : sequence.log_sum;
      const double w = std::exp(ClampLogRatio(log_w));
      out.capped_tokens += w > rule.cap;
      out.weight[t] = static_cast<float>(std::min(w, rule.cap));
    }
  }
  return out;
}

}  // namespace sluice
