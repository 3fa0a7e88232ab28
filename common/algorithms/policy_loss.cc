#include "common/algorithms/policy_loss.h"

#include <cmath>

#include "common/base/status.h"

namespace sluice {
namespace {

// The log-prob that the update ratio of token t refers to.
double Anchor(ProxMode prox, const PolicyTokens& tokens, int64_t t) {
  switch (prox) {
    case ProxMode::kNone: return tokens.lp_behav[t];
    case ProxMode::kSelf: return tokens.lp_theta[t];
    case ProxMode::kRecompute: return tokens.lp_prox[t];
  }
  return 0;
}

void CheckShapes(ProxMode prox, const PolicyTokens& tokens) {
  const size_t n = tokens.lp_theta.size();
  SLUICE_CHECK(tokens.advantage.size() == n && tokens.lp_behav.size() == n);
  SLUICE_CHECK((prox == ProxMode::kRecompute) ? tokens.lp_prox.size() == n
                                              : tokens.lp_prox.empty());
}

}  // namespace

LossValue Reinforce(const LossToken& token, const ClipRule&) {
  return {-token.advantage * token.lp_theta, -token.advantage};
}

LossValue PpoClip(const LossToken& token, const ClipRule& clip) {
  const double log_x = token.lp_theta - token.lp_anchor;
  const double x = std::exp(ClampLogRatio(log_x));
  const double a = token.advantage;
  const double plain = -a * x;
  const double clipped = -a * std::clamp(x, 1 - clip.low, 1 + clip.high);
  // The gradient of -a x with respect to lp_theta is -a x again.
  const bool moves = std::abs(log_x) <= kMaxLogRatio && clipped <= plain;
  LossValue loss{std::max(plain, clipped), moves ? plain : 0};
  // The dual clip: beyond it the loss is constant.
  if (a < 0 && loss.value > -a * clip.dual) loss = {-a * clip.dual, 0};
  return loss;
}

ClipCounts CountClipped(const ClipRule& clip, ProxMode prox, const PolicyTokens& tokens) {
  CheckShapes(prox, tokens);
  ClipCounts counts;
  for (int64_t t = 0; t < tokens.tokens(); ++t) {
    const double x = std::exp(ClampLogRatio(tokens.lp_theta[t] - Anchor(prox, tokens, t)));
    const float a = tokens.advantage[t];
    counts.high += a > 0 && x > 1 + clip.high;
    counts.low += a < 0 && x < 1 - clip.low;
    counts.dual += a < 0 && x > clip.dual;
  }
  return counts;
}

void PolicyLoss(LossFunction loss, const ClipRule& clip, ProxMode prox, const PolicyTokens& tokens,
                const Correction& correction, absl::Span<float> value, absl::Span<float> grad) {
  CheckShapes(prox, tokens);
  const size_t n = tokens.lp_theta.size();
  SLUICE_CHECK(correction.weight.size() == n && correction.keep.size() == n && value.size() == n &&
               grad.size() == n);
  for (int64_t t = 0; t < tokens.tokens(); ++t) {
    LossValue f;
    if (correction.keep[t]) {
      f = loss({.lp_theta = tokens.lp_theta[t],
                .lp_anchor = Anchor(prox, tokens, t),
                .advantage = tokens.advantage[t]},
               clip);
    }
    value[t] = static_cast<float>(correction.weight[t] * f.value);
    grad[t] = static_cast<float>(correction.weight[t] * f.grad);
  }
}

}  // namespace sluice
