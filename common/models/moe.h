#pragma once

#include <cstdint>

#include "absl/types/span.h"

// The router of a mixture of experts, which training and decoding share: a token's experts and
// their weights have the same bits in both. E experts, k of them for a token, logits [E].
namespace sluice {

// The id of an expert that nobody has recorded: the router chooses.
inline constexpr uint16_t kAnyExpert = 0xFFFF;

// The k experts of the highest logits, of equal ones those of lower id, to ids [k] in rising order.
void PickExperts(absl::Span<const float> logits, absl::Span<uint16_t> ids);

// weights [k] of the experts `ids`: their part of softmax(logits) or, with `normalize`, of the
// softmax over them alone.
void WeighExperts(absl::Span<const float> logits, absl::Span<const uint16_t> ids, bool normalize,
                  float* weights);

// dlogits [E] from dweights [k], where `weights` are as above.
void WeighExpertsGrad(absl::Span<const float> logits, absl::Span<const uint16_t> ids,
                      bool normalize, const float* weights, const float* dweights, float* dlogits);

}  // namespace sluice
