#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/models/train_model.h"
#include "services/trainer/core/sequences.h"

namespace sluice::trainer {

// The input of one forward pass. B sequences, N trained tokens.
struct MicroBatch {
  PackedBatch packed;
  // [B + 1] sequence b has trained tokens [offsets[b], offsets[b + 1]).
  std::vector<int64_t> offsets;
  std::vector<int64_t> targets;  // [N]
  std::vector<float> behavior;   // [N] behaviour log-probs; empty in supervised data.
  std::vector<float> advantage;  // [N]
  std::vector<double> weight;    // [B] Sequence::weight.
  std::vector<float> prox, ref;  // [N] proximal and reference log-probs, once computed; else empty.
};

// Divides the sequences of a step into micro-batches of at most `max_tokens` tokens. The sequences
// of a group must be adjacent. The tokens with which all sequences of a group begin (the prompt)
// are stored once per micro-batch.
std::vector<MicroBatch> MakeMicroBatches(absl::Span<const Sequence> sequences, uint32_t max_tokens);

}  // namespace sluice::trainer
