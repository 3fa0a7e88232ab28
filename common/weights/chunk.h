#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {
class TensorSet;

// Chunks of codec 0: raw elements of runs of tensors, as anchors carry them. Little-endian, packed:
//   header 16 B: `SLW1`, u8 codec, u8 tile_log2 (0), u16 runs, u32 tiles (0), u32 body bytes
//   runs, 48 B each: u32 tensor, u32 tiles (0), u64 first, row_len (1), row_stride (1), start (0),
//     count
//   body: the elements of the runs, in order
inline constexpr uint64_t kMaxChunkBytes = 4 << 20;
inline constexpr uint64_t kChunkTargetBytes = 1 << 20;

// Cuts all of `weights` into chunks with bodies of at most `target` bytes, in tensor order, and
// hands out each.
void EncodeFullChunks(const TensorSet& weights, uint64_t target,
                      const std::function<void(std::string chunk)>& emit);

// Checks the whole chunk, then copies its elements into `weights` (same layout) and adds the bytes
// it wrote to *written. DATA_LOSS names the chunk, the tensor and what is wrong; nothing is written
// then.
absl::Status DecodeFullChunk(absl::string_view chunk, TensorSet* weights, uint64_t* written);

}  // namespace sluice
