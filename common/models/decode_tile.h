#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/checkpoint/model_config.h"
#include "common/models/decode_model.h"
#include "common/models/divide.h"
#include "common/models/moe_decode.h"
#include "kernels/decoder/op.h"

// The data of one step. M rows of a tile, H hidden, Q query and KV key/value widths (heads x D), D
// head size, F feed-forward width, V vocabulary, k experts per token.
namespace sluice {

// The widths of a model's activations, and their strides: the numbers from one row to the next. The
// strides are even, because a product in bf16 needs a zero behind a row of odd width.
struct DecodeShape {
  explicit DecodeShape(const ModelConfig& config)
      : hidden(config.hidden_size),
        q(config.num_heads * config.head_dim),
        kv(config.num_kv_heads * config.head_dim),
        qkv(q + 2 * kv),
        ffn(config.intermediate_size),
        hidden_stride(RoundUpToPairs(hidden)),
        ffn_stride(RoundUpToPairs(ffn)) {}

  int64_t hidden, q, kv, qkv, ffn;
  int64_t hidden_stride, ffn_stride;
};

// One call of DecodeModel::Step(): its inputs, and where its results go.
struct DecodeStep {
  absl::Span<const DecodeModel::Row> rows;
  absl::Span<const absl::Span<const int32_t>> tables;
  bool adapted = false;  // Some row has an adapter.

  // By row: how many rows before it want logits. Its own results are at this index.
  std::vector<int64_t> output_row;
  float* logits = nullptr;        // [rows that want logits, V]
  std::vector<uint16_t> routing;  // [rows that want logits, layers, k]
};

// [M, width] activations that some products take exact and others rounded to T. In fp32 both are
// the same numbers in the same memory.
template <typename T>
class RowBuffer;

template <>
class RowBuffer<float> {
 public:
  void Allocate(int64_t rows, int64_t stride) {
    stride_ = stride;
    numbers_.resize(rows * stride);
  }
  int64_t stride() const { return stride_; }
  float* exact(int64_t row) { return &numbers_[row * stride_]; }
  float* rounded(int64_t row) { return exact(row); }

 private:
  int64_t stride_ = 0;  // Numbers from one row to the next.
  std::vector<float> numbers_;
};

template <>
class RowBuffer<uint16_t> {
 public:
  void Allocate(int64_t rows, int64_t stride) {
    stride_ = stride;
    exact_.resize(rows * stride);
    rounded_.resize(rows * stride);
  }
  int64_t stride() const { return stride_; }
  float* exact(int64_t row) { return &exact_[row * stride_]; }
  uint16_t* rounded(int64_t row) { return &rounded_[row * stride_]; }

 private:
  int64_t stride_ = 0;  // Numbers from one row to the next.
  std::vector<float> exact_;
  std::vector<uint16_t> rounded_;
};

// Rows of a step that go through all layers together, with the buffers that they are computed in.
// One tile serves one step after the other.
template <typename T>
struct Tile {
  // Set for each use.
  DecodeStep* step = nullptr;
  absl::Span<const int32_t> rows;  // Indexes of rows of the step.
  std::vector<int32_t> wanted;     // Rows of the tile that want logits.
  AttentionPlan attention;

  std::vector<float> x;    // [M, H]: the residual stream.
  RowBuffer<T> normed;     // [M, H]: x after the norm of the current block.
  std::vector<float> qkv;  // [M, Q + 2 KV]
  RowBuffer<T> mixed;      // [M, Q]: what attention gives.
  std::vector<T> act;      // [M, F]: silu(gate) * up.
  // [M, 2 F rounded up to panels]: gate and up in panels that alternate. It is used only if a bias
  // or an adapter comes between the products and SwiGLU.
  std::vector<float> gate_up;
  typename MoeMlp<T>::Scratch moe;

  int64_t size() const { return static_cast<int64_t>(rows.size()); }
  const DecodeModel::Row& row(int64_t r) const { return step->rows[rows[r]]; }
};

}  // namespace sluice
