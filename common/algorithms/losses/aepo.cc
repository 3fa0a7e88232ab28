#include "common/algorithms/losses/aepo.h"

#include <cmath>

namespace sluice {

LossValue Aepo(const LossToken& token, const ClipRule& clip) {
  const double x = std::exp(ClampLogRatio(token.lp_theta - token.lp_anchor));
  const bool above = token.advantage > 0 && x > 1 + clip.high;
  if (!above) return PpoClip(token, clip);
  const double bounded =
      -token.advantage * (1 + clip.high) * std::exp(token.lp_theta - token.detached);
  return {bounded, bounded};
}

TokenLoss MakeAepo(const LossSpec& spec) {
  return [clip = ClipRuleOf(spec)](const LossToken& token) { return Aepo(token, clip); };
}

void AepoDefaults(LossSpec& spec) { spec.dual.reset(); }

std::vector<double> AepoFactors(absl::Span<const float> entropy, double strength) {
  std::vector<double> factors(entropy.size(), 1.0);
  if (entropy.size() < 2) return factors;
  const double n = static_cast<double>(entropy.size());
  double sum = 0, squares = 0;
  for (const float h : entropy) sum += h;
  // A sum of equal fp32 numbers is exact in fp64, and so is their mean: then the std is exactly 0.
  // With a mean that is rounded, the std would be the rounding, and h about 1 for every token.
  const double mean = sum / n;
  for (const float h : entropy) squares += (h - mean) * (h - mean);
  const double std = std::sqrt(squares / (n - 1));
  if (std == 0) return factors;
  for (size_t t = 0; t < entropy.size(); ++t) factors[t] = 1 + strength * (entropy[t] - mean) / std;
  return factors;
}

}  // namespace sluice
