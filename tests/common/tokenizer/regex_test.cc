#include "common/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/tokenizer/splitter.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Matches(absl::string_view pattern, absl::string_view text) {
  const auto compiled = RegexPattern::Compile(pattern);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  std::vector<Span> spans;
  EXPECT_TRUE((*compiled)->Find(text, &spans).ok());
  std::vector<std::string> matches;
  for (const Span& span : spans) matches.emplace_back(text.substr(span.begin, span.size()));
  return matches;
}

TEST(RegexTest, SpacesAreWhiteSpaceOfUnicode) {
  EXPECT_THAT(Matches(R"(\s)", "a\u0085b\u180E\x1C \u2028"), ElementsAre("\u0085", " ", "\u2028"));
  EXPECT_THAT(Matches(R"([^\s]+)", "a b"), ElementsAre("a", "b"));
  EXPECT_THAT(Matches(R"(\S+)", "a b"), ElementsAre("a", "b"));
}

TEST(RegexTest, WordsHoldMarksAndTheirBoundariesFollow) {
  EXPECT_THAT(Matches(R"(\w+)", "ne\u0301e, a_b"), ElementsAre("ne\u0301e", "a_b"));
  EXPECT_THAT(Matches(R"(\bn)", "n\u0301n nn"), ElementsAre("n", "n"));
  // In this syntax \h is a hexadecimal digit.
  EXPECT_THAT(Matches(R"(\h)", "g F"), ElementsAre("F"));
}

TEST(RegexTest, CategoriesKnowCharactersNewerThanTheEngine) {
  EXPECT_THAT(Matches(R"(\p{L}+)", "1\U00010D50\U00010D70!"), ElementsAre("\U00010D50\U00010D70"));
  EXPECT_THAT(Matches(R"(\P{L}+)", "1\U00010D50!"), ElementsAre("1", "!"));
  EXPECT_THAT(Matches(R"([^\p{L}]+)", "1\U00010D50!"), ElementsAre("1", "!"));
  EXPECT_THAT(Matches(R"((?i:'s))", "'S '\u017F"), ElementsAre("'S", "'\u017F"));
}

TEST(RegexTest, AnchorsAreOfLines) {
  EXPECT_THAT(Matches(R"(^a$)", "a\na\r\nb"), ElementsAre("a"));
}

TEST(RegexTest, AnEmptyMatchNeverFollowsAMatchDirectly) {
  EXPECT_THAT(Matches("b*", "abbc"), ElementsAre("", "bb", ""));
  EXPECT_THAT(Matches("(?<=[a-z])(?=[A-Z])", "camelCaseText"), ElementsAre("", ""));
}

TEST(RegexTest, WhatMeansSomethingElseToTheEngineIsRefusedByName) {
  for (const char* const pattern :
       {"[a[b]]", "[[:alpha:]]", "[a-z&&[^b]]", "a{1,2}+", "(?m:a)", "(?s)", "(?x)", "(?<name>a)",
        R"(\R)", R"(\X)", R"(\K)", R"(\1)", R"([\S])", R"([\P{L}])", "(*UCP)", "(?#c)"}) {
    EXPECT_EQ(RegexPattern::Compile(pattern).status().code(), absl::StatusCode::kUnimplemented)
        << pattern;
  }

  EXPECT_THAT(std::string(RegexPattern::Compile("ab[a[b]]").status().message()),
              HasSubstr("at byte 4: a class within a class"));
}

TEST(RegexTest, BadAndOverlongPatternsAreRefused) {
  for (const std::string& pattern :
       {std::string("("), std::string("a\\"), std::string("[a"), std::string(4097, 'a'),
        std::string("\xFF"), std::string(R"(\x{110000})"), std::string("(?<=a*)b")}) {
    EXPECT_EQ(RegexPattern::Compile(pattern).status().code(), absl::StatusCode::kInvalidArgument)
        << pattern;
  }
}

TEST(RegexTest, APatternThatExplodesEndsAtTheLimit) {
  const auto pattern = RegexPattern::Compile("(a|aa)+$");
  ASSERT_TRUE(pattern.ok());
  std::vector<Span> spans;
  EXPECT_EQ((*pattern)->Find(std::string(60, 'a') + "!", &spans).code(),
            absl::StatusCode::kResourceExhausted);
}

std::vector<std::string> Split(const char* behavior, bool invert, absl::string_view text) {
  const nlohmann::json json = {{"type", "Split"},
                               {"pattern", {{"String", "-"}}},
                               {"behavior", behavior},
                               {"invert", invert}};

  std::vector<Span> spans;
  EXPECT_TRUE(
      Splitter::Parse(Component(json, "split"))->Split(text, {0, text.size()}, &spans).ok());

  std::vector<std::string> pieces;
  for (const Span& span : spans) pieces.emplace_back(text.substr(span.begin, span.size()));
  return pieces;
}

TEST(SplitterTest, EachBehaviorTreatsTheDelimiterAsItsNameSays) {
  EXPECT_THAT(Split("Isolated", false, "a-b--c-"), ElementsAre("a", "-", "b", "-", "-", "c", "-"));
  EXPECT_THAT(Split("Removed", false, "a-b--c-"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(Split("MergedWithPrevious", false, "a-b--c-"), ElementsAre("a-", "b-", "-", "c-"));
  EXPECT_THAT(Split("MergedWithNext", false, "a-b--c-"), ElementsAre("a", "-b", "-", "-c", "-"));
  EXPECT_THAT(Split("Contiguous", false, "a-b--c-"), ElementsAre("a", "-", "b", "--", "c", "-"));
  EXPECT_THAT(Split("Removed", true, "a-b--c-"), ElementsAre("-", "-", "-", "-"));
}

}  // namespace
}  // namespace sluice
