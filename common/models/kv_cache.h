#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/checkpoint/model_config.h"
#include "common/models/decode_model.h"
#include "common/models/huge_buffer.h"
#include "kernels/decoder/op.h"

namespace sluice {

static_assert(DecodeModel::kBlockTokens == kKvBlockTokens);

// The keys and values of all layers and KV heads, in blocks of 32 positions. T is float, or
// uint16_t for fp16.
//
// Layers are outermost, then blocks, then KV heads, so a block of one layer is one piece of memory.
template <typename T>
class KvCache {
 public:
  explicit KvCache(const ModelConfig& config);

  // Takes memory for `blocks` blocks; call it once, before the others. RESOURCE_EXHAUSTED: there is
  // not enough.
  absl::Status Allocate(int64_t blocks);

  // One KV head of one layer, as the kernels take it: all blocks.
  KvHead<T> Head(int64_t layer, int64_t head) const {
    return {Block(layer, 0) + head * head_size_, block_size_};
  }

  // Makes block `to` a copy of block `from`, in all layers.
  void CopyBlock(int64_t from, int64_t to);

  int64_t bytes() const { return buffer_.bytes(); }

 private:
  T* Block(int64_t layer, int64_t block) const {
    return reinterpret_cast<T*>(buffer_.data()) + (layer * blocks_ + block) * block_size_;
  }

  const int64_t layers_;
  const int64_t head_size_;   // Numbers in a block of one KV head.
  const int64_t block_size_;  // Numbers in a block of all KV heads of a layer.
  int64_t blocks_ = 0;
  HugeBuffer buffer_;  // [layers, blocks, KV heads, head_size_]
};

}  // namespace sluice
