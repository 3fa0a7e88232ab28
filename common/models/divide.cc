#include "common/models/divide.h"

#include <algorithm>
#include <numeric>

namespace sluice {

double RowShares::Deal(absl::Span<const DecodeModel::Row> rows, size_t tables,
                       absl::FunctionRef<int64_t(const DecodeModel::Row&)> cost) {
  const int threads = static_cast<int>(shares_.size());
  table_cost_.assign(tables, 0), table_thread_.assign(tables, -1), load_.assign(shares_.size(), 0);
  for (std::vector<int32_t>& share : shares_) share.clear();
  int64_t total = 0;
  for (const DecodeModel::Row& row : rows) {
    const int64_t c = cost(row);
    table_cost_[row.table] += c, total += c;
  }
  double left = static_cast<double>(total);  // What the threads before `current` do not have.
  int current = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    int& thread = table_thread_[rows[i].table];
    if (thread < 0) {
      const double more = static_cast<double>(table_cost_[rows[i].table]);
      const bool full =
          load_[current] > 0 && load_[current] + more / 2 > left / (threads - current);
      if (full && current + 1 < threads) left -= load_[current++];
      thread = current;
      load_[thread] += more;
    }
    shares_[thread].push_back(static_cast<int32_t>(i));
  }
  return rows.empty()
             ? 1
             : *std::max_element(load_.begin(), load_.end()) * threads / static_cast<double>(total);
}

void RowShares::GiveAll(size_t rows) {
  for (std::vector<int32_t>& share : shares_) share.clear();
  shares_[0].resize(rows);
  std::iota(shares_[0].begin(), shares_[0].end(), 0);
}

void AttentionPlan::Make(absl::Span<const DecodeModel::Row> rows, absl::Span<const int32_t> tile,
                         absl::Span<const absl::Span<const int32_t>> tables, int64_t kv_heads) {
  pieces_.clear(), units_.clear();
  const auto table = [&](int64_t r) { return rows[tile[r]].table; };
  for (int64_t r = 0; r < static_cast<int64_t>(tile.size()); ++r) {
    const bool joins = r > 0 && table(r) == table(r - 1) && pieces_.back().count < kPieceRows;
    if (joins) ++pieces_.back().count;
    else pieces_.push_back({r, 1});
  }
  // Neighbours that begin with one block share a prompt: they take a head one after the other,
  // while its keys and values are in the core's cache. Else a sequence takes its heads in a row, as
  // they lie in memory.
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
