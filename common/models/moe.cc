#include "common/models/moe.h"

#include <algorithm>

#include "kernels/sample/math.h"

namespace sluice {
namespace {

// A softmax over all E logits, or over those of a token's experts only.
struct Softmax {
  float max, sum;  // `sum` is that of exp(logit - max).

  float ProbabilityOf(float logit) const { return sample::Exp(logit - max) / sum; }
};

Softmax SoftmaxOfAll(absl::Span<const float> logits) {
  Softmax out{*std::max_element(logits.begin(), logits.end()), 0};
  for (const float logit : logits) out.sum += sample::Exp(logit - out.max);
  return out;
}

Softmax SoftmaxOfIds(absl::Span<const float> logits, absl::Span<const uint16_t> ids) {
  Softmax out{logits[ids[0]], 0};
  for (const uint16_t id : ids) out.max = std::max(out.max, logits[id]);
  for (const uint16_t id : ids) out.sum += sample::Exp(logits[id] - out.max);
  return out;
}

}  // namespace

void PickExperts(absl::Span<const float> logits, absl::Span<uint16_t> ids) {
  // An insertion sort: ids[0 .. held) are the best experts so far, best first. k is small.
  size_t held = 0;
  for (size_t e = 0; e < logits.size(); ++e) {
    size_t at = held;
    while (at > 0 && logits[e] > logits[ids[at - 1]]) --at;
    if (at == ids.size()) continue;
    held = std::min(held + 1, ids.size());
    std::copy_backward(ids.begin() + at, ids.begin() + held - 1, ids.begin() + held);
    ids[at] = static_cast<uint16_t>(e);
  }

  std::sort(ids.begin(), ids.end());
}

void WeighExperts(absl::Span<const float> logits, absl::Span<const uint16_t> ids, bool normalize,
                  float* weights) {
  const Softmax softmax = normalize ? SoftmaxOfIds(logits, ids) : SoftmaxOfAll(logits);
  for (const uint16_t id : ids) *weights++ = softmax.ProbabilityOf(logits[id]);
}

void WeighExpertsGrad(absl::Span<const float> logits, absl::Span<const uint16_t> ids,
                      bool normalize, const float* weights, const float* dweights, float* dlogits) {
  float mean = 0;  // sum_j w_j dw_j
  for (size_t i = 0; i < ids.size(); ++i) mean += weights[i] * dweights[i];

  // d logit_e = w_e (dw_e - mean), with dw_e = 0 for an expert that was not chosen. In a softmax
  // over the chosen experts only, the other logits take no part, so their gradient is 0.
  const Softmax softmax = SoftmaxOfAll(logits);
  for (size_t e = 0; e < logits.size(); ++e)
    dlogits[e] = normalize ? 0 : -softmax.ProbabilityOf(logits[e]) * mean;
  for (size_t i = 0; i < ids.size(); ++i) dlogits[ids[i]] = weights[i] * (dweights[i] - mean);
}

double WeighProbabilities(absl::Span<const float> logits, absl::Span<const double> coefficients) {
  const Softmax softmax = SoftmaxOfAll(logits);
  double sum = 0;
  for (size_t e = 0; e < logits.size(); ++e)
    sum += coefficients[e] * softmax.ProbabilityOf(logits[e]);
  return sum;
}

void WeighProbabilitiesGrad(absl::Span<const float> logits, absl::Span<const double> coefficients,
                            double scale, float* dlogits) {
  const Softmax softmax = SoftmaxOfAll(logits);
  const double mean = WeighProbabilities(logits, coefficients);
  for (size_t e = 0; e < logits.size(); ++e) {
    dlogits[e] =
        static_cast<float>(scale * softmax.ProbabilityOf(logits[e]) * (coefficients[e] - mean));
  }
}

}  // namespace sluice
