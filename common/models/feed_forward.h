#pragma once

#include <cstdint>

#include "common/checkpoint/model_config.h"
#include "common/models/crew.h"
#include "common/models/decode_tile.h"
#include "common/models/moe_decode.h"
#include "common/models/number_ops.h"
#include "common/models/packed_weights.h"

namespace sluice {

// The feed-forward block of a layer, with its norm: x += mlp(norm(x)) for the rows of a tile. The
// MLP is dense, or a mixture of experts.
template <typename T>
class FeedForward {
 public:
  using Layer = typename PackedWeights<T>::Layer;

  explicit FeedForward(const ModelConfig& config);

  // Makes room for the block's own buffers in a tile of up to `rows` rows.
  void Allocate(int64_t rows, Tile<T>* tile) const;
  // Likewise for a step in which some row has an adapter.
  void AllocateForAdapters(int64_t rows, Tile<T>* tile) const;

  // Adds the block of layer number `index` to tile->x. With experts, also records in the step the
  // experts of each row that wants logits. All threads of `crew` call it.
  void AddTo(const Crew& crew, int64_t index, const Layer& layer, Tile<T>* tile) const;

 private:
  void AddDense(const Crew& crew, int64_t index, const Layer& layer, Tile<T>* tile) const;
  void AddExperts(const Crew& crew, int64_t index, const Layer& layer, Tile<T>* tile) const;

  void GateUp(const Crew& crew, const Layer& layer, Tile<T>* tile) const;
  void GateUpInSteps(const Crew& crew, int64_t index, const Layer& layer, Tile<T>* tile) const;
  void FinishGateUpOfRow(int64_t index, const Layer& layer, int64_t r, Tile<T>* tile) const;
  void RecordExperts(int64_t index, int64_t r, Tile<T>* tile) const;

  const DecodeShape shape_;
  const int64_t gate_up_width_;  // 2 F rounded up to panels.
  const int64_t layers_, experts_, experts_per_token_;
  const bool has_biases_;
  const double eps_;
  const NumberOps<T> ops_;
  const MoeMlp<T> moe_;
};

}  // namespace sluice
