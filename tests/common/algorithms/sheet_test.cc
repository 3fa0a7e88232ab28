// The algorithm sheet numbers its invariants T1 to T28. The names of their tests begin with the
// number, so that these tests can say which have none. The suites whose names end in Fp64Test check
// an invariant against the second implementation of the sheet (slow/).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/testing/numbered_tests.h"

namespace sluice {
namespace {

const std::set<int> kWithoutATest;

// These are about what no formula of the sheet gives: several trainer ranks (T19), how the model is
// executed (T21, T23), and the trainer's state in a checkpoint (T24) and in a step that is skipped
// (T27).
const std::set<int> kWithoutAnFp64Twin = {19, 21, 23, 24, 27};

// The numbers that no test bears whose suite ends in `suffix`, as PolicyLossTest.T01AtEqual...
std::set<int> MissingIn(const std::string& suffix) {
  const std::set<int> borne = testing_data::NumbersOfTests('T', suffix);
  std::set<int> missing;
  for (int t = 1; t <= 28; ++t) {
    if (!borne.contains(t)) missing.insert(t);
  }
  return missing;
}

TEST(AlgorithmSheetTest, EveryInvariantHasATestThatBearsItsNumber) {
  EXPECT_EQ(MissingIn("Test"), kWithoutATest);
}

TEST(AlgorithmSheetTest, EveryInvariantOfAFormulaHasATestAgainstTheFp64Twin) {
  EXPECT_EQ(MissingIn("Fp64Test"), kWithoutAnFp64Twin);
}

}  // namespace
}  // namespace sluice
