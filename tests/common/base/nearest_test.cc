#include "common/base/nearest.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(NearestMatchTest, FindsWhatAMisspellingMeantAndNothingElse) {
  EXPECT_EQ(NearestMatch("hidden_sise", {"vocab_size", "hidden_size"}), "hidden_size");
  EXPECT_EQ(NearestMatch("lr", {"lv", "temperature"}), "lv");
  EXPECT_EQ(NearestMatch("frobnicate", {"vocab_size", "hidden_size"}), "");
  EXPECT_EQ(NearestMatch("anything", {}), "");
}

}  // namespace
}  // namespace sluice
