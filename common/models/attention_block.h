#pragma once

#include <cstdint>
#include <vector>

#include "common/checkpoint/model_config.h"
#include "common/models/crew.h"
#include "common/models/decode_tile.h"
#include "common/models/kv_cache.h"
#include "common/models/number_ops.h"
#include "common/models/packed_weights.h"
#include "common/models/rope_angles.h"

namespace sluice {

// The attention of a layer: x += o(attend(q, k, v)) for the rows of a tile.
template <typename T>
class AttentionBlock {
 public:
  using Layer = typename PackedWeights<T>::Layer;

  // `angles` and `cache` outlive the block.
  AttentionBlock(const ModelConfig& config, const RopeAngles* angles, KvCache<T>* cache);

  // Adds the attention of layer number `index` to tile->x. tile->normed (exact) holds x after the
  // layer's first norm. Writes the rows' keys and values to the cache. All threads of `crew` call
  // it.
  void AddTo(const Crew& crew, int64_t index, const Layer& layer, Tile<T>* tile) const;

 private:
  void ComputeQkv(const Crew& crew, int64_t index, const Layer& layer, Tile<T>* tile) const;
  void PrepareRow(int64_t index, const Layer& layer, int64_t r, Tile<T>* tile) const;
  void NormAndRotate(const std::vector<float>& norm, int64_t position, float* head) const;
  void Attend(int64_t index, const AttentionPlan::Unit& unit, Tile<T>* tile) const;
  void AddOutput(const Crew& crew, int64_t index, const Layer& layer, Tile<T>* tile) const;

  const DecodeShape shape_;
  const int64_t heads_, kv_heads_, head_dim_, window_;
  const double eps_;
  const NumberOps<T> ops_;
  const RopeAngles& angles_;
  KvCache<T>& cache_;
};

}  // namespace sluice
