#include "common/models/recompute.h"

#include <algorithm>

#include "common/checkpoint/model_config.h"

namespace sluice {

int64_t KeptBytesPerToken(const ModelConfig& c) {
  const int64_t q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim,
                width =
                    c.num_experts > 0 ? c.experts_per_token * c.expert_size : c.intermediate_size;
  // The input, two norms and two sums; q, k and v before and after norm and rope, and attention's
  // output and copies; gate, up and their product.
  const int64_t numbers = 5 * c.hidden_size + 4 * q + 8 * kv + 3 * width;
  return c.num_layers * numbers * 4;
}

int64_t MostKeptBytes(uint64_t memory) {
  return std::max(int64_t{256} << 20, static_cast<int64_t>(memory / 8));
}

bool RecomputesLayers(Recompute recompute, const ModelConfig& config, int64_t tokens,
                      int64_t most_kept_bytes) {
  return recompute == Recompute::kLayer ||
         (recompute == Recompute::kAuto && tokens * KeptBytesPerToken(config) > most_kept_bytes);
}

}  // namespace sluice
