#include "tests/services/queue/core/harness.h"

namespace sluice::queue {
namespace {

Spec TwoSources() {
  Spec spec = SmallSpec();
  spec.sources = {{.name = "a", .weight = 3}, {.name = "b", .weight = 1}};
  spec.epochs = 2;
  return spec;
}

TEST(PromptsTest, EachEpochIsAShuffleOfAllRows) {
  Prompts prompts(SmallSpec(), std::make_shared<Rows>(std::vector<uint64_t>{50}));
  std::vector<uint64_t> orders[2];
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int i = 0; i < 50; ++i) {
      const RowRef row = *prompts.Next(0);
      EXPECT_EQ(row.epoch, static_cast<uint32_t>(epoch));
      orders[epoch].push_back(row.index);
    }
    std::set<uint64_t> all(orders[epoch].begin(), orders[epoch].end());
    EXPECT_EQ(all.size(), 50u);
  }

  EXPECT_NE(orders[0], orders[1]);
}

TEST(PromptsTest, TheOrderIsAFunctionOfTheSeed) {
  const auto rows = std::make_shared<Rows>(std::vector<uint64_t>{50});
  Spec other = SmallSpec();
  other.seed = 8;
  Prompts one(SmallSpec(), rows), same(SmallSpec(), rows), differs(other, rows);
  bool differed = false;
  for (int i = 0; i < 120; ++i) {
    const RowRef row = *one.Next(0);
    EXPECT_EQ(row, *same.Next(0));
    differed |= row != *differs.Next(0);
  }

  EXPECT_TRUE(differed);
}

TEST(PromptsTest, SourcesTakeTurnsByWeightUntilTheirEpochsEnd) {
  Prompts prompts(TwoSources(), std::make_shared<Rows>(std::vector<uint64_t>{30, 10}));
  int drawn[2] = {0, 0};
  for (int i = 0; i < 40; ++i) ++drawn[prompts.Next(0)->source];
  EXPECT_EQ(drawn[0], 30);
  EXPECT_EQ(drawn[1], 10);

  for (int i = 0; i < 40; ++i) ASSERT_TRUE(prompts.Next(0).has_value());
  EXPECT_FALSE(prompts.Next(0).has_value());
  EXPECT_TRUE(prompts.exhausted());
}

TEST(PromptsTest, ProgressGoesOnWhereItStood) {
  const auto rows = std::make_shared<Rows>(std::vector<uint64_t>{30, 10});
  Prompts one(TwoSources(), rows), other(TwoSources(), rows);
  for (int i = 0; i < 37; ++i) one.Next(0);
  one.Reissue({.source = 1, .epoch = 0, .index = 3});
  other.Reset(one.progress());

  // Of the 2 x 40 draws 43 are left, and one row is drawn again.
  for (int i = 0; i < 44; ++i) EXPECT_EQ(one.Next(0), other.Next(0));
  EXPECT_TRUE(other.exhausted());
}

TEST(PromptsTest, AQuarantinedRowIsDrawnInNoLaterEpoch) {
  Spec spec = SmallSpec();
  spec.epochs = 5;
  Prompts prompts(spec, std::make_shared<Rows>(std::vector<uint64_t>{4}));

  EXPECT_TRUE(prompts.Quarantine({.index = 2}));
  EXPECT_FALSE(prompts.Quarantine({.epoch = 3, .index = 2})) << "it is the same row in each epoch";

  int drawn = 0;
  while (const std::optional<RowRef> row = prompts.Next(0)) {
    EXPECT_NE(row->index, 2u);
    ++drawn;
    EXPECT_EQ(prompts.exhausted(), drawn == 5 * 3);
  }
  EXPECT_EQ(drawn, 5 * 3);
}

TEST(PromptsTest, AFailureOfAQuarantinedRowIsNotReportedAgain) {
  Spec spec = SmallSpec();  // reissues = 1
  Prompts prompts(spec, std::make_shared<Rows>(std::vector<uint64_t>{4}));
  const RowRef row{.index = 1};

  EXPECT_EQ(prompts.Reissue(row), Prompts::Fate::kAgain);
  EXPECT_EQ(prompts.Reissue({.index = 1, .occurrence = 1}), Prompts::Fate::kQuarantined);
  EXPECT_EQ(prompts.Reissue({.epoch = 1, .index = 1}), Prompts::Fate::kWasQuarantined);

  EXPECT_EQ(prompts.quarantined(), 1u);
  EXPECT_TRUE(prompts.progress().again.empty()) << "its draw that was due is taken back";
}

TEST(PromptsTest, WithEveryRowQuarantinedASourceEndsThoughItsEpochsDoNot) {
  // The spec limits no epochs, so that they go on for ever.
  Prompts prompts(SmallSpec(), std::make_shared<Rows>(std::vector<uint64_t>{3}));
  for (uint64_t row = 0; row < 3; ++row) {
    EXPECT_FALSE(prompts.exhausted());
    prompts.Quarantine({.index = row});
  }

  EXPECT_TRUE(prompts.exhausted());
  EXPECT_FALSE(prompts.Next(0).has_value());

  EXPECT_EQ(prompts.Readmit([](const RowRef& row) { return row.index == 1; }), 1u);
  EXPECT_EQ(prompts.Next(0)->index, 1u);
}

TEST(PromptsTest, QuarantinedRowsStayOutAfterARestore) {
  const auto rows = std::make_shared<Rows>(std::vector<uint64_t>{30, 10});
  Prompts one(TwoSources(), rows), other(TwoSources(), rows);
  for (int i = 0; i < 11; ++i) one.Next(0);
  for (uint64_t row = 0; row < 20; ++row) one.Quarantine({.source = 0, .index = row});
  other.Reset(one.progress());

  while (const std::optional<RowRef> row = one.Next(0)) {
    EXPECT_EQ(other.Next(0), row);
    EXPECT_TRUE(row->source == 1 || row->index >= 20) << row->index;
  }

  EXPECT_TRUE(other.exhausted());
}

}  // namespace
}  // namespace sluice::queue
