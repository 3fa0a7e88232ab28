#include "common/base/json_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice {
namespace {

TEST(JsonDepthTest, CountsListsAndObjectsWithinEachOther) {
  EXPECT_EQ(JsonDepth("5"), 0u);
  EXPECT_EQ(JsonDepth("[]"), 1u);
  EXPECT_EQ(JsonDepth(R"({"a": [1, {"b": []}], "c": {}})"), 4u);
  EXPECT_EQ(JsonDepth("[[], [], [[]], []]"), 3u);
}

TEST(JsonDepthTest, BracketsInsideTextsDoNotCount) {
  EXPECT_EQ(JsonDepth(R"({"a": "[[[["})"), 1u);
  EXPECT_EQ(JsonDepth(R"({"a": "\"[[[[", "b": [1]})"), 2u);
  EXPECT_EQ(JsonDepth(R"({"a": "\\", "b": [1]})"), 2u)
      << "the quote after two backslashes ends the text";
}

TEST(JsonDepthTest, TextsThatAreNoJsonHaveADepthToo) {
  EXPECT_EQ(JsonDepth(std::string(100'000, '[')), 100'000u);
  EXPECT_EQ(JsonDepth("]]]}[["), 2u);
  EXPECT_EQ(JsonDepth(R"("no end [)"), 0u);
  EXPECT_EQ(JsonDepth("\"ends with \\"), 0u);
}

}  // namespace
}  // namespace sluice
