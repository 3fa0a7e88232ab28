#include "common/models/kv_cache.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

template <typename T>
KvCache<T>::KvCache(const ModelConfig& config)
    : layers_(config.num_layers),
      head_size_(KvHead<T>::BlockSize(config.head_dim)),
      block_size_(config.num_kv_heads * head_size_) {}

template <typename T>
absl::Status KvCache<T>::Allocate(int64_t blocks) {
  SLUICE_CHECK(blocks_ == 0 && blocks > 0);
  const int64_t bytes = layers_ * blocks * block_size_ * static_cast<int64_t>(sizeof(T));
  SLUICE_ASSIGN_OR_RETURN(
      buffer_,
      HugeBuffer::Create(bytes, absl::StrCat("a KV cache of ", blocks, " blocks of ",
                                             kKvBlockTokens, " tokens; ask for fewer blocks")));
  blocks_ = blocks;
  return absl::OkStatus();
}

template <typename T>
void KvCache<T>::CopyBlock(int64_t from, int64_t to) {
  SLUICE_CHECK(from >= 0 && from < blocks_ && to >= 0 && to < blocks_);
  if (from == to) return;

  for (int64_t layer = 0; layer < layers_; ++layer)
    std::copy_n(Block(layer, from), block_size_, Block(layer, to));
}

template class KvCache<float>;
template class KvCache<uint16_t>;

}  // namespace sluice
