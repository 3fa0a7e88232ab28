// Checks what every division of a step must keep, on random steps, and some divisions made by hand.
#include "common/models/divide.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/base/splitmix.h"

namespace sluice {
namespace {

using Row = DecodeModel::Row;

int64_t CostOf(const Row& row) { return 100 + row.position; }

// Rows of up to 40 sequences. The rows of a sequence, one or more, may come in several runs.
struct Step {
  std::vector<Row> rows;
  size_t tables = 0;
};

Step RandomStep(SplitMix64* random) {
  Step step;
  step.tables = 1 + random->Below(40);
  std::vector<int32_t> next(step.tables);
  for (uint64_t run = 0, runs = 1 + random->Below(2 * step.tables); run < runs; ++run) {
    const auto table = static_cast<int32_t>(random->Below(step.tables));
    for (uint64_t n = random->Below(3) == 0 ? 1 + random->Below(60) : 1; n > 0; --n)
      step.rows.push_back({.table = table, .position = next[table]++});
  }
  return step;
}

TEST(RowSharesTest, EveryRowGoesToOneThreadAndASequenceStaysTogetherInItsOrder) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SplitMix64 random(seed);
    const int threads = 1 + static_cast<int>(random.Below(6));
    RowShares shares(threads);

    // The rounds show that nothing is left of the step before.
    for (int round = 0; round < 3; ++round) {
      const Step step = RandomStep(&random);
      shares.Deal(step.rows, step.tables, CostOf);

      std::vector<int> seen(step.rows.size());
      std::map<int32_t, int> thread_of;
      for (int t = 0; t < threads; ++t) {
        EXPECT_TRUE(std::is_sorted(shares.of(t).begin(), shares.of(t).end()));
        for (const int32_t row : shares.of(t)) {
          ++seen[row];
          EXPECT_EQ(thread_of.emplace(step.rows[row].table, t).first->second, t) << "seed " << seed;
        }
      }

      EXPECT_EQ(seen, std::vector<int>(step.rows.size(), 1)) << "seed " << seed;
    }
  }
}

TEST(RowSharesTest, DealReturnsTheLargestShareDividedByTheMean) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SplitMix64 random(seed);
    const Step step = RandomStep(&random);
    const int threads = 1 + static_cast<int>(random.Below(6));
    RowShares shares(threads);
    const double uneven = shares.Deal(step.rows, step.tables, CostOf);

    double largest = 0, total = 0;
    for (int t = 0; t < threads; ++t) {
      double load = 0;
      for (const int32_t row : shares.of(t)) load += static_cast<double>(CostOf(step.rows[row]));
      largest = std::max(largest, load), total += load;
    }

    EXPECT_DOUBLE_EQ(uneven, largest * threads / total) << "seed " << seed;
  }
}

TEST(RowSharesTest, EqualSequencesAreDealtOutEvenlyNeighboursTogether) {
  for (int threads = 1; threads <= 6; ++threads) {
    for (int sequences = threads; sequences <= 64; ++sequences) {
      std::vector<Row> rows;
      for (int32_t s = 0; s < sequences; ++s) rows.push_back({.table = s, .position = 7});

      RowShares shares(threads);
      shares.Deal(rows, rows.size(), CostOf);

      int32_t next = 0;
      for (int t = 0; t < threads; ++t) {
        const auto share = static_cast<int>(shares.of(t).size());
        EXPECT_GE(share, sequences / threads)
            << threads << " threads, " << sequences << " sequences";
        EXPECT_LE(share, (sequences + threads - 1) / threads);
        for (const int32_t row : shares.of(t)) EXPECT_EQ(row, next++);
      }
    }
  }
}

TEST(RowSharesTest, AllOfOneSequenceGoesToOneThreadAndAllToTheFirstWhereAsked) {
  std::vector<Row> rows;
  for (int32_t position = 0; position < 100; ++position)
    rows.push_back({.table = 0, .position = position});
  RowShares shares(4);

  EXPECT_DOUBLE_EQ(shares.Deal(rows, 1, CostOf), 4) << "one thread has all";
  EXPECT_DOUBLE_EQ(shares.Deal({}, 0, CostOf), 1);
  for (int t = 0; t < 4; ++t) EXPECT_TRUE(shares.of(t).empty());

  shares.GiveAllToFirst(3);
  EXPECT_EQ(shares.of(0), (std::vector<int32_t>{0, 1, 2}));
}

TEST(AttentionPlanTest, PiecesCoverTheTileAndEachTakesEachHeadOnce) {
  constexpr int64_t kHeads = 3;
  AttentionPlan plan;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SplitMix64 random(seed);
    const Step step = RandomStep(&random);
    std::vector<int32_t> blocks(step.tables), tile;
    // Some sequences share a prompt, and so their first block.
    for (int32_t& block : blocks) block = static_cast<int32_t>(random.Below(8));
    std::vector<absl::Span<const int32_t>> tables;
    for (const int32_t& block : blocks) tables.emplace_back(&block, 1);
    for (size_t i = 0; i < step.rows.size(); ++i) {
      if (random.Below(8) != 0) tile.push_back(static_cast<int32_t>(i));
    }

    plan.Make(step.rows, tile, tables, kHeads);

    int64_t next = 0;
    for (const AttentionPlan::Piece& piece : plan.pieces()) {
      EXPECT_EQ(piece.first, next);
      EXPECT_GE(piece.count, 1);
      EXPECT_LE(piece.count, AttentionPlan::kPieceRows);
      for (int64_t r = piece.first; r < piece.first + piece.count; ++r)
        EXPECT_EQ(step.rows[tile[r]].table, step.rows[tile[piece.first]].table);
      next += piece.count;
    }
    EXPECT_EQ(next, static_cast<int64_t>(tile.size()));

    std::set<std::pair<int64_t, int64_t>> units;
    for (const AttentionPlan::Unit& unit : plan.units()) {
      EXPECT_TRUE(units.emplace(unit.piece, unit.head).second) << "twice";
      EXPECT_LT(unit.head, kHeads);
    }
    EXPECT_EQ(units.size(), plan.pieces().size() * kHeads) << "seed " << seed;
  }
}

TEST(AttentionPlanTest, SequencesThatShareAPromptTakeEachHeadInTurnAndAnyOtherTakesItsHeadsInARow) {
  const std::vector<int32_t> shared = {5, 6}, alone = {9};
  const std::vector<absl::Span<const int32_t>> tables = {shared, shared, alone};
  const std::vector<Row> rows = {
      {.table = 0, .position = 40}, {.table = 1, .position = 41}, {.table = 2, .position = 3}};

  AttentionPlan plan;
  plan.Make(rows, {0, 1, 2}, tables, 2);
  std::vector<std::pair<int64_t, int64_t>> order;
  for (const AttentionPlan::Unit& unit : plan.units()) order.emplace_back(unit.piece, unit.head);

  EXPECT_EQ(order, (std::vector<std::pair<int64_t, int64_t>>{
                       {0, 0}, {1, 0}, {0, 1}, {1, 1}, {2, 0}, {2, 1}}));
}

// 2 layers; 8 x (2 x 12 + 2 x 4 + 3 x 10) = 496 weights in each; 5 x 8 = 40 in the head.
ModelConfig SomeConfig() {
  ModelConfig config;
  config.vocab_size = 5, config.hidden_size = 8, config.intermediate_size = 10;
  config.num_layers = 2, config.num_heads = 3, config.num_kv_heads = 1, config.head_dim = 4;
  return config;
}

TEST(RowCostTest, ARowCostsItsWeightsTheKeysAndValuesThatItSeesAndItsLogits) {
  // A number of the KV cache costs as much as 10 weights.
  const RowCost cost(SomeConfig());
  EXPECT_EQ(cost({.position = 0}), 2 * (496 + 10 * 2 * 4 * 1));
  EXPECT_EQ(cost({.position = 6}), 2 * (496 + 10 * 2 * 4 * 7));
  EXPECT_EQ(cost({.position = 6, .want_logits = true}), 2 * (496 + 10 * 2 * 4 * 7) + 40);

  ModelConfig window = SomeConfig();
  window.sliding_window = 3;
  EXPECT_EQ(RowCost(window)({.position = 6}), 2 * (496 + 10 * 2 * 4 * 3));

  ModelConfig experts = SomeConfig();
  experts.num_experts = 9, experts.experts_per_token = 2, experts.expert_size = 6;
  EXPECT_EQ(RowCost(experts)({.position = 0}), 2 * (8 * (24 + 8 + 3 * 12) + 10 * 2 * 4 * 1));
}

// One row of each of `sequences` sequences, the first of which is at position `first`.
std::vector<Row> DecodeRows(int32_t sequences, int32_t first) {
  std::vector<Row> rows;
  for (int32_t s = 0; s < sequences; ++s)
    rows.push_back({.table = s, .position = s == 0 ? first : 1});
  return rows;
}

TEST(StepDivisionTest, ThreadsWorkApartIfThereAreEnoughRowsInEvenShares) {
  using Way = StepDivision::Way;
  StepDivision division(SomeConfig());

  division.Configure(2, int64_t{1} << 30);
  EXPECT_EQ(division.Divide(DecodeRows(15, 1), 15), Way::kTogether) << "few rows";
  EXPECT_EQ(division.rows_of(0).size(), 15) << "thread 0 has all rows";
  EXPECT_EQ(division.Divide(DecodeRows(16, 1), 16), Way::kApart);
  EXPECT_EQ(division.rows_of(0).size(), 8);
  EXPECT_EQ(division.rows_of(1).size(), 8);
  EXPECT_EQ(division.Divide(DecodeRows(16, 5000), 16), Way::kTogether) << "one costs most of all";
  EXPECT_EQ(division.rows_of(0).size(), 16);
  EXPECT_EQ(division.tile_rows(), StepDivision::kMaxTileRows);

  division.Configure(1, int64_t{1} << 30);
  EXPECT_EQ(division.Divide(DecodeRows(16, 1), 16), Way::kTogether) << "one thread";
}

TEST(StepDivisionTest, SmallWeightsAreAlwaysComputedApartInSmallTiles) {
  StepDivision division(SomeConfig());
  division.Configure(2, 1 << 20);
  for (const std::vector<Row>& rows : {DecodeRows(2, 1), DecodeRows(16, 5000)})
    EXPECT_EQ(division.Divide(rows, rows.size()), StepDivision::Way::kApart);
  EXPECT_LT(division.tile_rows(), StepDivision::kMaxTileRows);

  division.Configure(1, 1 << 20);
  EXPECT_EQ(division.tile_rows(), StepDivision::kMaxTileRows) << "one thread";
}

TEST(OutputsPerUnitTest, AThreadAloneTakesAllAndATeamEvenNumbersOfPanels) {
  EXPECT_EQ(OutputsPerUnit(1, 150), 160);
  EXPECT_EQ(OutputsPerUnit(2, 150), 32) << "two panels at least";
  EXPECT_EQ(OutputsPerUnit(2, 8192), 1024) << "512 panels in 8 units";
  EXPECT_EQ(OutputsPerUnit(3, 1600), 128) << "100 panels, 8 of which are less than a twelfth";
}

}  // namespace
}  // namespace sluice
