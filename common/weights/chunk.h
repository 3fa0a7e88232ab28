#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {
class TensorSet;

// The chunks of a full manifest (codec 0). A chunk holds the raw elements of one or more runs; a
// run is a range of consecutive elements of one tensor. Integers are little-endian, structs packed:
//   header, 16 bytes: `SLW1`, u8 codec, u8 tile_log2 (0), u16 number of runs, u32 tiles (0),
//                     u32 bytes of the body
//   runs, 48 bytes each: u32 tensor (index in the layout), u32 tiles (0), u64 first element,
//                     u64 row_len (1), u64 row_stride (1), u64 start (0), u64 number of elements
//   body: the elements of the runs, in order
// The fields with a fixed value in brackets are for later codecs.
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
