#pragma once

#include <cstdint>

#include "common/base/machine_memory.h"

namespace sluice {

struct ModelConfig;

// Which activations the backward pass of training computes again instead of keeping them. All
// values give the same bits, but for sequences in parts (ActivationMemory::part_tokens).
enum class Recompute {
  kNone,   // None.
  kLayer,  // Those within each layer; only the input of each layer is kept.
  kAuto,   // As kLayer where kNone would keep more than a limit for a batch, else as kNone.
};
// The usual limit of kAuto: an eighth of the memory that may be used, and at least 256 MiB.
int64_t MostKeptBytes(uint64_t memory = MachineMemory());

// How a pass of a model bounds the memory that activations take.
struct ActivationMemory {
  Recompute recompute = Recompute::kNone;
  int64_t most_kept_bytes = MostKeptBytes();  // The limit of Recompute::kAuto.
  // A sequence with more tokens is computed in parts of this many, one after the other, and keeps
  // nothing within the layers, unless `recompute` is kNone and the pass has a backward pass. The
  // log-probs have the same bits; gradients are equal up to rounding. 0: never.
  int64_t part_tokens = 0;
};

// Returns about how many bytes of activations a token keeps for the backward pass, over all layers,
// without recomputation.
int64_t KeptBytesPerToken(const ModelConfig& config);
// Whether the activations within the layers are computed again for a batch of `tokens`.
// `most_kept_bytes` is the limit of kAuto.
bool RecomputesLayers(Recompute recompute, const ModelConfig& config, int64_t tokens,
                      int64_t most_kept_bytes);

}  // namespace sluice
