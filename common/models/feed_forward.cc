#include "common/models/feed_forward.h"

#include <algorithm>
#include <vector>

#include "common/models/adapter.h"
#include "common/models/tile_ops.h"

namespace sluice {

template <typename T>
FeedForward<T>::FeedForward(const ModelConfig& config)
    : shape_(config),
      gate_up_width_(2 * RoundUpToLanes(config.intermediate_size)),
      layers_(config.num_layers),
      experts_(config.num_experts),
      experts_per_token_(config.experts_per_token),
      has_biases_(config.mlp_bias),
      eps_(config.rms_norm_eps),
      moe_(config) {}

template <typename T>
void FeedForward<T>::Allocate(int64_t rows, Tile<T>* tile) const {
  tile->act.resize(rows * shape_.ffn_stride);
  if (has_biases_) tile->gate_up.resize(rows * gate_up_width_);
  moe_.Allocate(rows, &tile->moe);
}

template <typename T>
void FeedForward<T>::AllocateForAdapters(int64_t rows, Tile<T>* tile) const {
  tile->gate_up.resize(rows * gate_up_width_);
}

template <typename T>
void FeedForward<T>::AddTo(const Crew& crew, int64_t index, const Layer& layer,
                           Tile<T>* tile) const {
  if (experts_ > 0) AddExperts(crew, index, layer, tile);
  else AddDense(crew, index, layer, tile);
}

template <typename T>
void FeedForward<T>::AddDense(const Crew& crew, int64_t index, const Layer& layer,
                              Tile<T>* tile) const {
  crew.ForEach(tile->size(), [&](int64_t r) {
    ops_.NormAndRound(&tile->x[r * shape_.hidden], layer.post_norm, eps_, tile->normed.rounded(r));
  });

  if (has_biases_ || tile->step->adapted) GateUpInSteps(crew, index, layer, tile);
  else GateUp(crew, layer, tile);

  Multiply(crew, ops_,
           Product<T, T>{.x = tile->act.data(),
                         .x_stride = shape_.ffn_stride,
                         .weight = layer.down,
                         .m = tile->size(),
                         .n = shape_.hidden,
                         .k = shape_.ffn,
                         .y = tile->x.data(),
                         .y_stride = shape_.hidden,
                         .add = true});
  AddAdapters(crew, *tile, [&](const Adapter& adapter, int64_t r) {
    adapter.Add(index, Adapter::kDown, &tile->act[r * shape_.ffn_stride],
                &tile->x[r * shape_.hidden]);
  });
  AddBias(crew, layer.down_bias, tile);
}

template <typename T>
void FeedForward<T>::AddExperts(const Crew& crew, int64_t index, const Layer& layer,
                                Tile<T>* tile) const {
  // Exact, for the router; the experts round their own inputs.
  crew.ForEach(tile->size(), [&](int64_t r) {
    ops_.Norm(&tile->x[r * shape_.hidden], layer.post_norm, eps_, tile->normed.exact(r));
  });

  moe_.AddTo(crew, layer, tile->normed.exact(0), tile->size(), tile->x.data(), &tile->moe);
  crew.ForEach(static_cast<int64_t>(tile->wanted.size()),
               [&](int64_t i) { RecordExperts(index, tile->wanted[i], tile); });
}

// act = silu(gate(normed)) * up(normed), as one operation.
template <typename T>
void FeedForward<T>::GateUp(const Crew& crew, const Layer& layer, Tile<T>* tile) const {
  ForEachOutputRange(crew, shape_.ffn, [&](int64_t first, int64_t count) {
    const T* weight = layer.gate_up + 2 * first * NumberOps<T>::PackedInputs(shape_.hidden);
    ops_.GateUp(tile->normed.rounded(0), tile->normed.stride(), weight, tile->size(), count,
                shape_.hidden, &tile->act[first], shape_.ffn_stride);
  });
}

// The same, with the same bits, if biases or an adapter come between the products and SwiGLU.
template <typename T>
void FeedForward<T>::GateUpInSteps(const Crew& crew, int64_t index, const Layer& layer,
                                   Tile<T>* tile) const {
  Multiply(crew, ops_,
           Product<T, T>{.x = tile->normed.rounded(0),
                         .x_stride = tile->normed.stride(),
                         .weight = layer.gate_up,
                         .m = tile->size(),
                         .n = gate_up_width_,
                         .k = shape_.hidden,
                         .y = tile->gate_up.data(),
                         .y_stride = gate_up_width_,
                         .add = false});
  crew.ForEach(tile->size(), [&](int64_t r) { FinishGateUpOfRow(index, layer, r, tile); });
}

template <typename T>
void FeedForward<T>::FinishGateUpOfRow(int64_t index, const Layer& layer, int64_t r,
                                       Tile<T>* tile) const {
  // Gate [F] and up [F] of the row, out of the panels that alternate.
  thread_local std::vector<float> sides;
  sides.resize(2 * shape_.ffn);
  float* const gate = sides.data();
  float* const up = gate + shape_.ffn;
  const float* products = &tile->gate_up[r * gate_up_width_];
  for (int64_t f = 0; f < shape_.ffn; ++f) {
    const float* panels = &products[f / kDecoderLanes * 2 * kDecoderLanes + f % kDecoderLanes];
    gate[f] = panels[0];
    up[f] = panels[kDecoderLanes];
  }

  if (has_biases_) {
    for (int64_t f = 0; f < shape_.ffn; ++f) gate[f] += layer.gate_bias[f];
    for (int64_t f = 0; f < shape_.ffn; ++f) up[f] += layer.up_bias[f];
  }
  if (const Adapter* adapter = tile->row(r).adapter) {
    adapter->Add(index, Adapter::kGate, tile->normed.rounded(r), gate);
    adapter->Add(index, Adapter::kUp, tile->normed.rounded(r), up);
  }

  ops_.SwiGlu(up, shape_.ffn, gate);
  ops_.Round(gate, shape_.ffn, &tile->act[r * shape_.ffn_stride]);
}

template <typename T>
void FeedForward<T>::RecordExperts(int64_t index, int64_t r, Tile<T>* tile) const {
  const int64_t output_row = tile->step->output_row[tile->rows[r]];
  std::copy_n(&tile->moe.ids[r * experts_per_token_], experts_per_token_,
              &tile->step->routing[(output_row * layers_ + index) * experts_per_token_]);
}

template class FeedForward<float>;
template class FeedForward<uint16_t>;

}  // namespace sluice
