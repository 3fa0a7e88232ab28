#include "common/models/divide.h"

#include <algorithm>
#include <numeric>

#include "common/base/status.h"
#include "kernels/decoder/op.h"

namespace sluice {
namespace {

// Cost of reading one number of the KV cache, in weights. A weight is used for all rows of a tile,
// a number of the cache for one row only.
constexpr int64_t kKvNumberCost = 10;

// The threads work apart only if each would have at least this many rows, on average.
constexpr int64_t kMinRowsApart = 8;

// The threads work apart only if the largest share is at most this many times the mean share.
constexpr double kMaxUneven = 1.25;

// Weights of up to this size fit in the cache of one core. Then there is nothing to gain from using
// each weight often, and the threads always work apart.
constexpr int64_t kSmallWeightBytes = 2 << 20;

// A tile has enough rows to use each weight often, and few enough for their activations to stay in
// a cache. Small weights gain nothing from being used often, so with several threads their tiles
// have fewer rows.
constexpr int64_t kSmallTileRows = 48;

// Units of a product per thread: a thread that is late takes fewer.
constexpr int64_t kUnitsPerThread = 4;

int64_t LayerWeights(const ModelConfig& config) {
  const int64_t q = config.num_heads * config.head_dim, kv = config.num_kv_heads * config.head_dim;
  const int64_t mlp = config.num_experts > 0 ? config.experts_per_token * config.expert_size
                                             : config.intermediate_size;
  return config.hidden_size * (2 * q + 2 * kv + 3 * mlp);
}

}  // namespace

RowCost::RowCost(const ModelConfig& config)
    : layers_(config.num_layers),
      layer_weights_(LayerWeights(config)),
      head_weights_(config.vocab_size * config.hidden_size),
      kv_width_(config.num_kv_heads * config.head_dim),
      window_(config.sliding_window) {}

int64_t RowCost::operator()(const DecodeModel::Row& row) const {
  const int64_t seen = row.position + 1 - WindowBegin(row.position, window_);
  const int64_t layer = layer_weights_ + kKvNumberCost * 2 * kv_width_ * seen;
  return layers_ * layer + (row.want_logits ? head_weights_ : 0);
}

double RowShares::Deal(absl::Span<const DecodeModel::Row> rows, size_t tables,
                       absl::FunctionRef<int64_t(const DecodeModel::Row&)> cost) {
  const int threads = static_cast<int>(shares_.size());
  for (std::vector<int32_t>& share : shares_) share.clear();
  load_.assign(shares_.size(), 0);
  table_cost_.assign(tables, 0);
  table_thread_.assign(tables, -1);

  int64_t total = 0;
  for (const DecodeModel::Row& row : rows) {
    const int64_t c = cost(row);
    table_cost_[row.table] += c;
    total += c;
  }

  // Threads are filled one after the other; `left` is the cost that the threads before `current` do
  // not have.
  double left = static_cast<double>(total);
  int current = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    int& thread = table_thread_[rows[i].table];
    if (thread < 0) {
      // Go on to the next thread if this sequence would take the current one over its share by more
      // than half of the sequence's cost.
      const double more = static_cast<double>(table_cost_[rows[i].table]);
      const bool full =
          load_[current] > 0 && load_[current] + more / 2 > left / (threads - current);
      if (full && current + 1 < threads) left -= load_[current++];
      thread = current;
      load_[thread] += more;
    }
    shares_[thread].push_back(static_cast<int32_t>(i));
  }

  if (rows.empty()) return 1;
  const double largest = *std::max_element(load_.begin(), load_.end());
  return largest * threads / static_cast<double>(total);
}

void RowShares::GiveAllToFirst(size_t rows) {
  for (std::vector<int32_t>& share : shares_) share.clear();
  shares_[0].resize(rows);
  std::iota(shares_[0].begin(), shares_[0].end(), 0);
}

void StepDivision::Configure(int threads, int64_t weight_bytes) {
  SLUICE_CHECK(threads >= 1);
  threads_ = threads;
  small_ = weight_bytes <= kSmallWeightBytes;
  shares_ = RowShares(threads);
}

StepDivision::Way StepDivision::Divide(absl::Span<const DecodeModel::Row> rows, size_t tables) {
  const bool few = static_cast<int64_t>(rows.size()) < kMinRowsApart * threads_;
  if (threads_ > 1 && (small_ || !few)) {
    const double uneven = shares_.Deal(rows, tables, cost_);
    if (small_ || uneven <= kMaxUneven) return Way::kApart;
  }

  shares_.GiveAllToFirst(rows.size());
  return Way::kTogether;
}

int64_t StepDivision::tile_rows() const {
  return small_ && threads_ > 1 ? kSmallTileRows : kMaxTileRows;
}

int64_t OutputsPerUnit(int threads, int64_t n) {
  if (threads == 1) return RoundUpToLanes(n);

  const int64_t panels = RoundUpToLanes(n) / kDecoderLanes;
  const int64_t pairs = panels / (kUnitsPerThread * threads) / 2;
  return std::max<int64_t>(1, pairs) * 2 * kDecoderLanes;
}

void AttentionPlan::Make(absl::Span<const DecodeModel::Row> rows, absl::Span<const int32_t> tile,
                         absl::Span<const absl::Span<const int32_t>> tables, int64_t kv_heads) {
  pieces_.clear();
  units_.clear();

  const auto table = [&](int64_t r) { return rows[tile[r]].table; };
  for (int64_t r = 0; r < static_cast<int64_t>(tile.size()); ++r) {
    const bool joins = r > 0 && table(r) == table(r - 1) && pieces_.back().count < kPieceRows;
    if (joins) ++pieces_.back().count;
    else pieces_.push_back({r, 1});
  }

  // Neighbouring pieces whose tables begin with the same block share a prompt. They take one head
  // after the other, while its keys and values are in the core's cache. A piece that shares nothing
  // takes all its heads in the order in which they lie in memory.
  const auto first_block = [&](size_t piece) { return tables[table(pieces_[piece].first)][0]; };
  for (size_t first = 0, end; first < pieces_.size(); first = end) {
    for (end = first + 1; end < pieces_.size() && first_block(end) == first_block(first);) ++end;
    for (int64_t head = 0; head < kv_heads; ++head) {
      for (size_t piece = first; piece < end; ++piece)
        units_.push_back({static_cast<int64_t>(piece), head});
    }
  }
}

}  // namespace sluice
