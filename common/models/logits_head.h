#pragma once

#include <cstdint>

#include "common/checkpoint/model_config.h"
#include "common/models/crew.h"
#include "common/models/decode_tile.h"
#include "common/models/number_ops.h"
#include "common/models/packed_weights.h"

namespace sluice {

// The end of the model: the last norm and the output head, for the rows that want logits.
template <typename T>
class LogitsHead {
 public:
  explicit LogitsHead(const ModelConfig& config);

  // Writes the logits of the tile's rows to the logits of the step. All threads of `crew` call it.
  void Compute(const Crew& crew, const PackedWeights<T>& weights, Tile<T>* tile) const;

 private:
  const int64_t hidden_, vocab_;
  const double eps_;
  const NumberOps<T> ops_;
};

}  // namespace sluice
