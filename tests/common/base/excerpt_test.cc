#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/json_excerpt.h"
#include "common/base/utf8.h"

namespace sluice {
namespace {

TEST(ExcerptTest, AShortTextIsWholeAndALongOneEndsBetweenCharacters) {
  EXPECT_EQ(Excerpt("abc", 3), "abc");
  EXPECT_EQ(Excerpt("abcd", 3), "abc..");
  EXPECT_EQ(Excerpt("ab\u00e9", 3), "ab..");
}

TEST(ExcerptTest, AnExcerptOfJsonIsUtf8WhateverItsStringsHold) {
  const std::string long_text(100, 'x');
  EXPECT_EQ(JsonExcerpt(nlohmann::json({{"a", 1}})), R"({"a":1})");
  EXPECT_EQ(JsonExcerpt(nlohmann::json(long_text)), "\"" + long_text.substr(0, 79) + "..");
  EXPECT_TRUE(IsUtf8(JsonExcerpt(nlohmann::json("\xff\xfe"))));
  // The quote, the x and the letters y are 79 bytes, so the limit of 80 is in the last letter.
  EXPECT_TRUE(IsUtf8(JsonExcerpt(nlohmann::ordered_json("x" + std::string(77, 'y') + "\u00e9"))));
}

}  // namespace
}  // namespace sluice
