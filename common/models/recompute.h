#pragma once

#include <cstdint>

namespace sluice {

struct ModelConfig;

// Which activations the backward pass of training computes again instead of keeping them. No value
// changes a bit of the result.
enum class Recompute {
  kNone,   // None.
  kLayer,  // Those within each layer; only the input of each layer is kept.
  kAuto,   // As kLayer where kNone would keep more than kMostKeptBytes for a batch, else as kNone.
};
inline constexpr int64_t kMostKeptBytes = int64_t{1} << 30;

// Returns about how many bytes of activations a token keeps for the backward pass, over all layers,
// without recomputation.
int64_t KeptBytesPerToken(const ModelConfig& config);
// Whether the activations within the layers are computed again for a batch of `tokens`.
bool RecomputesLayers(Recompute recompute, const ModelConfig& config, int64_t tokens);

}  // namespace sluice
