#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/tensor_set.h"
#include "common/weights/delta_chunk.h"
#include "common/weights/fingerprint.h"

namespace sluice {

// The way from one state of the weights to another: the chunks of one or several deltas in a row.
// Differences add up, so the order of the chunks does not matter, and the same chunks with the
// other sign lead back.
struct WeightDelta {
  Fingerprint base;  // Fingerprint of the weights that it starts from.
  std::vector<SignedChunk> chunks;
  // Fingerprint of each tensor of the weights that it leads to. Empty: not known.
  std::vector<Fingerprint> tensor_states;

  // Number of changed elements; one that several chunks change counts several times.
  uint64_t changed() const;
  uint64_t bytes() const;  // Of all chunks.
};

// Whether two chunks may change the same element. Chunks that share a tensor by columns count as
// such.
bool MayOverlap(const WeightDelta& delta);

// Returns the same way with each element changed at most once, in chunks that do not overlap.
// Takes time and memory in proportion to the changes. `layout` are the tensors that the chunks were
// parsed for.
WeightDelta Merge(const WeightDelta& delta, absl::Span<const TensorSpec> layout);

// A part of a delta that one thread applies at once: tiles [begin, end) of a run of a chunk.
struct DeltaPiece {
  const SignedChunk* chunk;
  const DeltaChunk::Run* run;
  uint32_t begin, end;
};
// Cuts a delta into pieces of at most `tiles` tiles. They point into `delta`.
std::vector<DeltaPiece> CutIntoPieces(const WeightDelta& delta, uint32_t tiles);

}  // namespace sluice
