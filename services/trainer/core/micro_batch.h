#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/models/train_model.h"
#include "services/trainer/core/sequences.h"

namespace sluice::trainer {

// What one forward pass takes. B sequences, N trained tokens.
struct MicroBatch {
  PackedBatch packed;
  std::vector<int64_t> offsets;  // [B + 1]: trained tokens of sequence b.
  std::vector<int64_t> targets;  // [N]
  std::vector<float> behavior;   // [N]; empty in supervised data.
  std::vector<float> advantage;  // [N]
  std::vector<double> weight;    // [B]
  std::vector<float> prox, ref;  // [N] once computed; else empty.
};

// Divides the sequences of a step, those of a group side by side, into micro-batches of at most
// `max_tokens` tokens. What the sequences of a group have in common from their start, the prompt,
// lies in a micro-batch once.
std::vector<MicroBatch> MakeMicroBatches(absl::Span<const Sequence> sequences, uint32_t max_tokens);

}  // namespace sluice::trainer
