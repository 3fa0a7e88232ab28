#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "common/checkpoint/model_config.h"
#include "common/models/decode_model.h"

namespace sluice {

// How a step is divided: its rows among threads, the rows of a thread into tiles, the outputs of a
// product among the threads that share it, and the attention of a tile into units. These classes
// keep their buffers from step to step, so that a step allocates nothing.

// What one row of a step costs, in weights that it is multiplied with.
class RowCost {
 public:
  explicit RowCost(const ModelConfig& config);

  int64_t operator()(const DecodeModel::Row& row) const;

 private:
  const int64_t layers_;
  const int64_t layer_weights_;  // Weights that a row is multiplied with in each layer.
  const int64_t head_weights_;   // Weights that a row is multiplied with to give logits.
  const int64_t kv_width_, window_;
};

// Deals the rows of a step to threads. The rows of a thread are indexes in rising order.
class RowShares {
 public:
  explicit RowShares(int threads) : shares_(threads), load_(threads) {}

  // Gives each thread about the same cost. Neighbouring sequences go to one thread. All rows of a
  // sequence go to one thread, because a row attends to keys that earlier rows of its sequence
  // write. `tables` is the number of sequences; cost(row) > 0. Returns the largest share of the
  // cost divided by the mean share, at least 1.
  double Deal(absl::Span<const DecodeModel::Row> rows, size_t tables,
              absl::FunctionRef<int64_t(const DecodeModel::Row&)> cost);

  // Gives all rows to the first thread.
  void GiveAllToFirst(size_t rows);

  absl::Span<const int32_t> of(int thread) const { return shares_[thread]; }

 private:
  std::vector<std::vector<int32_t>> shares_;  // By thread.
  std::vector<double> load_;                  // By thread: the cost of its sequences.
  std::vector<int64_t> table_cost_;           // By table: the cost of its rows.
  std::vector<int> table_thread_;             // By table: its thread, or -1 if it has none yet.
};

// Decides whether the threads work apart or together, and on which rows.
//
// Apart: each thread takes its own rows through all layers, and none waits for another. While one
// thread attends, which waits for memory, another multiplies. They come to each weight at about the
// same time, so it is read from memory once.
//
// Together: all threads take the same rows and share the outputs of each product; they wait for
// each other some ten times per layer. This is better if there are few rows per thread, which would
// use a weight too seldom, or if the sequences cannot be dealt evenly.
class StepDivision {
 public:
  enum class Way { kApart, kTogether };

  explicit StepDivision(const ModelConfig& config) : cost_(config), shares_(1) {}

  // `weight_bytes` is the size of all packed weights. Call this before the first step and between
  // steps.
  void Configure(int threads, int64_t weight_bytes);

  // Divides the rows of a step, which belong to `tables` sequences.
  Way Divide(absl::Span<const DecodeModel::Row> rows, size_t tables);

  // The rows of a thread if the last step is computed apart. If it is computed together, thread 0
  // has all rows.
  absl::Span<const int32_t> rows_of(int thread) const { return shares_.of(thread); }

  // The most rows that go through the layers together.
  int64_t tile_rows() const;
  static constexpr int64_t kMaxTileRows = 128;

 private:
  const RowCost cost_;
  int threads_ = 1;
  bool small_ = false;  // The weights fit in the cache of one core.
  RowShares shares_;
};

// Returns how many of a product's n outputs one of `threads` threads computes at a time: all of
// them for one thread, else those of an even number of panels, since the kernels compute two panels
// at once.
int64_t OutputsPerUnit(int threads, int64_t n);

// Divides the attention of a tile into units. A unit is a piece of the tile with one KV head.
class AttentionPlan {
 public:
  static constexpr int64_t kPieceRows = 16;

  // Neighbouring rows of the tile that belong to one sequence, at most kPieceRows.
  struct Piece {
    int64_t first, count;
  };
  struct Unit {
    int64_t piece, head;
  };

  // `tile` lists rows of the step. tables[i] has the blocks of sequence i, as in
  // DecodeModel::Step().
  void Make(absl::Span<const DecodeModel::Row> rows, absl::Span<const int32_t> tile,
            absl::Span<const absl::Span<const int32_t>> tables, int64_t kv_heads);

  const std::vector<Piece>& pieces() const { return pieces_; }
  const std::vector<Unit>& units() const { return units_; }  // In the order of their computation.

 private:
  std::vector<Piece> pieces_;
  std::vector<Unit> units_;
};

}  // namespace sluice
