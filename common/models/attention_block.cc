#include "common/models/attention_block.h"

#include "common/models/adapter.h"
#include "common/models/tile_ops.h"

namespace sluice {

template <typename T>
AttentionBlock<T>::AttentionBlock(const ModelConfig& config, const RopeAngles* angles,
                                  KvCache<T>* cache)
    : shape_(config),
      heads_(config.num_heads),
      kv_heads_(config.num_kv_heads),
      head_dim_(config.head_dim),
      window_(config.sliding_window),
      eps_(config.rms_norm_eps),
      angles_(*angles),
      cache_(*cache) {}

template <typename T>
void AttentionBlock<T>::AddTo(const Crew& crew, int64_t index, const Layer& layer,
                              Tile<T>* tile) const {
  ComputeQkv(crew, index, layer, tile);

  // A row attends to keys of earlier rows of its tile, so all keys come before all attention.
  crew.ForEach(tile->size(), [&](int64_t r) { PrepareRow(index, layer, r, tile); });
  const std::vector<AttentionPlan::Unit>& units = tile->attention.units();
  crew.ForEach(static_cast<int64_t>(units.size()),
               [&](int64_t i) { Attend(index, units[i], tile); });

  AddOutput(crew, index, layer, tile);
}

// The inputs are exact: errors in q and k would go through a softmax.
template <typename T>
void AttentionBlock<T>::ComputeQkv(const Crew& crew, int64_t index, const Layer& layer,
                                   Tile<T>* tile) const {
  Multiply(crew, ops_,
           Product<float, T>{.x = tile->normed.exact(0),
                             .x_stride = tile->normed.stride(),
                             .weight = layer.qkv,
                             .m = tile->size(),
                             .n = shape_.qkv,
                             .k = shape_.hidden,
                             .y = tile->qkv.data(),
                             .y_stride = shape_.qkv,
                             .add = false});

  AddAdapters(crew, *tile, [&](const Adapter& adapter, int64_t r) {
    const float* normed = tile->normed.exact(r);
    float* const q = &tile->qkv[r * shape_.qkv];
    adapter.Add(index, Adapter::kQ, normed, q);
    adapter.Add(index, Adapter::kK, normed, q + shape_.q);
    adapter.Add(index, Adapter::kV, normed, q + shape_.q + shape_.kv);
  });
}

// Adds the biases to a row's queries, keys and values, norms and rotates its queries and keys, and
// writes its keys and values to the cache.
template <typename T>
void AttentionBlock<T>::PrepareRow(int64_t index, const Layer& layer, int64_t r,
                                   Tile<T>* tile) const {
  const DecodeModel::Row& row = tile->row(r);
  float* const q = &tile->qkv[r * shape_.qkv];
  float* const k = q + shape_.q;
  float* const v = k + shape_.kv;
  for (size_t i = 0; i < layer.qkv_bias.size(); ++i) q[i] += layer.qkv_bias[i];

  for (int64_t h = 0; h < heads_; ++h) NormAndRotate(layer.q_norm, row.position, q + h * head_dim_);

  const int64_t block = tile->step->tables[row.table][row.position / kKvBlockTokens];
  const int64_t offset = row.position % kKvBlockTokens;
  for (int64_t h = 0; h < kv_heads_; ++h) {
    NormAndRotate(layer.k_norm, row.position, k + h * head_dim_);
    StoreKeyValue(cache_.Head(index, h), block, offset, head_dim_, k + h * head_dim_,
                  v + h * head_dim_);
  }
}

template <typename T>
void AttentionBlock<T>::NormAndRotate(const std::vector<float>& norm, int64_t position,
                                      float* head) const {
  if (!norm.empty()) ops_.Norm(head, norm, eps_, head);
  ops_.Rotate(angles_.cos(position), angles_.sin(position), angles_.pairs(), head);
}

// A piece of the tile attends with the query heads that share one KV head.
template <typename T>
void AttentionBlock<T>::Attend(int64_t index, const AttentionPlan::Unit& unit,
                               Tile<T>* tile) const {
  const AttentionPlan::Piece& piece = tile->attention.pieces()[unit.piece];
  const int64_t end = piece.first + piece.count;
  const int64_t group = heads_ / kv_heads_, first = unit.head * group * head_dim_;

  thread_local std::vector<AttentionQuery> queries;
  queries.clear();
  for (int64_t r = piece.first; r < end; ++r) {
    const int64_t position = tile->row(r).position;
    const float* q = &tile->qkv[r * shape_.qkv] + first;
    float* const out = tile->mixed.exact(r) + first;
    for (int64_t h = 0; h < group; ++h) {
      queries.push_back({.q = q + h * head_dim_,
                         .out = out + h * head_dim_,
                         .begin = WindowBegin(position, window_),
                         .end = position + 1});
    }
  }

  const int32_t* blocks = tile->step->tables[tile->row(piece.first).table].data();
  ops_.Attend(queries, cache_.Head(index, unit.head), blocks, head_dim_);

  for (int64_t r = piece.first; r < end; ++r)
    ops_.Round(tile->mixed.exact(r) + first, group * head_dim_, tile->mixed.rounded(r) + first);
}

template <typename T>
void AttentionBlock<T>::AddOutput(const Crew& crew, int64_t index, const Layer& layer,
                                  Tile<T>* tile) const {
  Multiply(crew, ops_,
           Product<T, T>{.x = tile->mixed.rounded(0),
                         .x_stride = tile->mixed.stride(),
                         .weight = layer.o,
                         .m = tile->size(),
                         .n = shape_.hidden,
                         .k = shape_.q,
                         .y = tile->x.data(),
                         .y_stride = shape_.hidden,
                         .add = true});

  AddAdapters(crew, *tile, [&](const Adapter& adapter, int64_t r) {
    adapter.Add(index, Adapter::kO, tile->mixed.exact(r), &tile->x[r * shape_.hidden]);
  });
  AddBias(crew, layer.o_bias, tile);
}

template class AttentionBlock<float>;
template class AttentionBlock<uint16_t>;

}  // namespace sluice
