#pragma once

#include <cstdint>
#include <vector>

#include "common/checkpoint/model_config.h"
#include "common/models/crew.h"
#include "common/models/number_ops.h"
#include "common/models/packed_weights.h"

namespace sluice {

// The mixture of experts of a layer in the decode execution. A token's result is the sum over its
// experts, in rising order of their ids, of weight times output; it depends on no other token. T is
// the type of the weights, float or uint16_t for bf16. The router takes exact inputs in both,
// because a rounding there can change the choice of experts.
//
// The rows of one expert are computed as one product. A slot is a place in its buffers: each row
// has k of them, one with each of its experts, and the slots of an expert are neighbours.
//
// M rows (tokens), E experts, k of them for a row, H hidden, F width of an expert.
template <typename T>
class MoeMlp {
 public:
  using Layer = typename PackedWeights<T>::Layer;
  using Expert = typename PackedWeights<T>::Expert;

  struct Scratch {
    std::vector<float> logits;   // [M, E]
    std::vector<uint16_t> ids;   // [M, k]
    std::vector<float> weights;  // [M, k]
    std::vector<int32_t> ends;   // [E + 1]: expert e computes slots ends[e] .. ends[e + 1] - 1.
    std::vector<int32_t> rows;   // [M k], by slot: the row.
    std::vector<int32_t> slots;  // [M, k]: the slots of a row, in the order of its experts.
    std::vector<T> in;           // [M k, H], by slot
    std::vector<T> act;          // [M k, F], by slot
    std::vector<float> out;      // [M k, H], by slot
  };

  explicit MoeMlp(const ModelConfig& config);

  // Makes room for tiles of up to m rows.
  void Allocate(int64_t m, Scratch* scratch) const;

  // x [m, H] += the mixture of normed [m, H] (rows RoundUpToPairs(H) apart). All threads of `crew`
  // call it. Afterwards scratch->ids has the experts of each row.
  void AddTo(const Crew& crew, const Layer& layer, const float* normed, int64_t m, float* x,
             Scratch* scratch) const;

 private:
  void RouteRow(const Layer& layer, const float* normed, int64_t row, Scratch* s) const;
  void AssignSlots(int64_t m, Scratch* s) const;
  void ComputeExpert(const Expert& expert, const float* normed, int64_t first, int64_t end,
                     Scratch* s) const;
  void AddMixture(int64_t row, float* x, Scratch* s) const;

  const NumberOps<T> ops_;
  const int64_t experts_, k_, hidden_, width_;
  const int64_t in_stride_, act_stride_;  // Numbers from one row to the next.
  const bool normalize_;
};

}  // namespace sluice
