#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {
class TensorSet;

// The chunks of a full manifest (codec 0). A chunk holds the raw elements of one or more runs; a
// run is a range of consecutive elements of one tensor. Header and runs have the form of
// chunk_format.h, with tile_log2 = tiles = start = 0 and row_len = row_stride = 1. The body is the
// elements of the runs, in order.
inline constexpr uint64_t kMaxChunkBytes = 4 << 20;
inline constexpr uint64_t kChunkTargetBytes = 1 << 20;

// Splits all of `weights` into chunks, in tensor order, and calls `emit` with each. A body has at
// most `target` bytes (or one element, if that is larger).
void EncodeFullChunks(const TensorSet& weights, uint64_t target,
                      const std::function<void(std::string chunk)>& emit);

// Checks the whole chunk, then copies its elements into `weights`, which must have the same layout,
// and adds the number of bytes written to *written.
// DATA_LOSS: the chunk is malformed; nothing was written. The message names the chunk, what is
// wrong and, for a bad run, the tensor.
absl::Status DecodeFullChunk(absl::string_view chunk, TensorSet* weights, uint64_t* written);

}  // namespace sluice
