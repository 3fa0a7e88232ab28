#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "common/models/decode_model.h"

namespace sluice {

// How a step is divided: its rows over threads, and a tile of them into what attends together.
// Integers only. Buffers are kept from step to step.

// The rows of a step that each thread has, rising.
class RowShares {
 public:
  explicit RowShares(int threads) : shares_(threads), load_(threads) {}

  // Gives each thread about the same cost, neighbours together, all rows of a sequence to one: a
  // row attends to what its earlier rows write. `tables`: their number. cost(row) > 0. Returns the
  // largest share of the cost over the mean, at least 1.
  double Deal(absl::Span<const DecodeModel::Row> rows, size_t tables,
              absl::FunctionRef<int64_t(const DecodeModel::Row&)> cost);
  // Gives the first thread all of them.
  void GiveAll(size_t rows);

  absl::Span<const int32_t> of(int thread) const { return shares_[thread]; }

 private:
  std::vector<std::vector<int32_t>> shares_;
  std::vector<double> load_;         // By thread.
  std::vector<int64_t> table_cost_;  // By table: of its rows.
  std::vector<int> table_thread_;    // Likewise; -1: none yet.
};

// The attention of a tile, a list of rows of the step: pieces of it, and in which order they take
// the kv heads.
class AttentionPlan {
 public:
  static constexpr int64_t kPieceRows = 16;

  struct Piece {
    int64_t first, count;  // Of the tile: neighbours of one sequence, at most kPieceRows.
  };
  struct Unit {
    int64_t piece, head;
  };

  // tables[i]: the blocks of sequence i, as in DecodeModel::Step().
  void Make(absl::Span<const DecodeModel::Row> rows, absl::Span<const int32_t> tile,
            absl::Span<const absl::Span<const int32_t>> tables, int64_t kv_heads);

  const std::vector<Piece>& pieces() const { return pieces_; }
  const std::vector<Unit>& units() const { return units_; }

 private:
  std::vector<Piece> pieces_;
  std::vector<Unit> units_;
};

}  // namespace sluice
