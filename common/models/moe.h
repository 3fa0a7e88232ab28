#pragma once

#include <cstdint>

#include "absl/types/span.h"

// The router of a mixture of experts. Training and decoding share it, so that a token's experts and
// their weights have the same bits in both. There are E experts, k of them for a token; the logits
// of the router are [E].
namespace sluice {

// Stands in place of an expert's id if none was recorded. The router then chooses.
inline constexpr uint16_t kAnyExpert = 0xFFFF;

// Writes the k experts with the highest logits to ids [k], in rising order of their ids. Of equal
// logits, the one with the lower id counts as higher.
void PickExperts(absl::Span<const float> logits, absl::Span<uint16_t> ids);

// Writes the weights [k] of the experts `ids`: their probabilities in softmax(logits) or, with
// `normalize`, in the softmax over these k logits only.
void WeighExperts(absl::Span<const float> logits, absl::Span<const uint16_t> ids, bool normalize,
                  float* weights);

// Writes the gradient dlogits [E], given the gradient dweights [k]. `weights` are what
// WeighExperts() gave for the same logits and ids.
void WeighExpertsGrad(absl::Span<const float> logits, absl::Span<const uint16_t> ids,
                      bool normalize, const float* weights, const float* dweights, float* dlogits);

// Returns sum_e c_e p_e, where p = softmax(logits) over all E experts and c are `coefficients` [E].
double WeighProbabilities(absl::Span<const float> logits, absl::Span<const double> coefficients);

// Writes `scale` times the gradient of WeighProbabilities() to dlogits [E].
void WeighProbabilitiesGrad(absl::Span<const float> logits, absl::Span<const double> coefficients,
                            double scale, float* dlogits);

}  // namespace sluice
