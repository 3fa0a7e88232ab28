// The design of weight synchronisation numbers its invariants W1 to W15. The names of their tests
// begin with the numbers, so that this test can say which have none.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/testing/numbered_tests.h"

namespace sluice {
namespace {

TEST(WeightSheetTest, EveryInvariantHasATestThatBearsItsNumber) {
  std::set<int> all;
  for (int w = 1; w <= 15; ++w) all.insert(w);
  EXPECT_EQ(testing_data::NumbersOfTests('W', "Test"), all);
}

}  // namespace
}  // namespace sluice
