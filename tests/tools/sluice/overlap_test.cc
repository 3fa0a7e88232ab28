#include "tools/sluice/data/overlap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/splitmix.h"

namespace sluice::cli {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  for (const TextWord& word : WordsOf(text))
    words.push_back(text.substr(word.begin, word.end - word.begin));
  return words;
}

TEST(WordsTest, AreRunsOfLettersMarksAndDigits) {
  EXPECT_THAT(Words("Tom's 3 cats, x2 (na\u00efve) e\u0301t\u00e9!"),
              ElementsAre("Tom", "s", "3", "cats", "x2", "na\u00efve", "e\u0301t\u00e9"));
}

TEST(WordsTest, AreSingleLettersWhereNothingSeparatesWords) {
  EXPECT_THAT(Words("\u4e00\u4e8c GPU\u304b\u3089"),
              ElementsAre("\u4e00", "\u4e8c", "GPU", "\u304b", "\u3089"));
}

TEST(WordsTest, AreTheWholeTextIfItHasNoLetters) {
  EXPECT_THAT(Words("! ?"), ElementsAre("! ?"));
  EXPECT_THAT(Words(""), IsEmpty());
}

TEST(WordsTest, AreOperatorsToo) {
  EXPECT_THAT(Words("x^2 + 3 - 4"), ElementsAre("x", "^", "2", "+", "3", "-", "4"));
  EXPECT_THAT(Words("2*(a-1)/b"), ElementsAre("2", "*", "a", "-", "1", "/", "b"));
  EXPECT_THAT(Words("a well-known - if old - and/or *bold* text"),
              ElementsAre("a", "well", "known", "if", "old", "and", "or", "bold", "text"));
}

TEST(WordsTest, CaseMakesNoDifferenceToTheirHash) {
  EXPECT_EQ(WordsOf("\u00c9TAT")[0].hash, WordsOf("\u00e9tat")[0].hash);
  EXPECT_NE(WordsOf("ab")[0].hash, WordsOf("ba")[0].hash);
}

TEST(WordsTest, BytesThatAreNoUtf8SeparateWords) {
  EXPECT_THAT(Words("a\xff"
                    "b\xe2\x82"),
              ElementsAre("a", "b"));
}

// A text of `count` words, the first of which is this number.
std::string Numbers(int first, int count) {
  std::vector<int> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(first + i);
  return absl::StrJoin(numbers, " ");
}

TEST(OverlapTest, ThirteenWordsInARowAreAnOverlapAndTwelveAreNone) {
  Overlap overlap;
  ASSERT_TRUE(overlap.Add(Numbers(100, 30)).ok());
  overlap.Finish();

  const std::string thirteen = absl::StrCat("before ", Numbers(110, 13), " after");
  const auto found = overlap.Find(thirteen);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].held_out, 0u);
  EXPECT_EQ(found[0].words, Numbers(110, 13));
  EXPECT_THAT(overlap.Find(absl::StrCat("before ", Numbers(110, 12), " after")), IsEmpty());
}

TEST(OverlapTest, ShortTextsOverlapIfTheirWordsAreTheSame) {
  Overlap overlap;
  ASSERT_TRUE(overlap.Add("What is 3 + 4?").ok());
  overlap.Finish();

  EXPECT_EQ(overlap.Find("what is 3+4").size(), 1u);
  EXPECT_THAT(overlap.Find("What is 3 + 5?"), IsEmpty());
  EXPECT_THAT(overlap.Find("What is 3 - 4?"), IsEmpty());
  EXPECT_THAT(overlap.Find("Tell me: what is 3 + 4?"), IsEmpty());
}

TEST(OverlapTest, WhatMoreThanTenTextsShareCountsForNoneOfThem) {
  const std::string instruction = Numbers(0, 20);
  for (const int texts : {10, 11}) {
    Overlap overlap;
    for (int i = 0; i < texts; ++i)
      ASSERT_TRUE(overlap.Add(absl::StrCat(instruction, " question ", i)).ok());
    overlap.Finish();
    EXPECT_EQ(overlap.Find(absl::StrCat(instruction, " of another task")).size(),
              texts == 10 ? 10u : 0u);
  }
}

// Benchmarks with few questions are shipped with each of them many times.
TEST(OverlapTest, OfEqualTextsTheFirstStandsForAll) {
  Overlap overlap;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(overlap.Add(Numbers(0, 30)).ok());
    ASSERT_TRUE(overlap.Add("short").ok());
  }
  overlap.Finish();
  const auto found = overlap.Find(Numbers(0, 30));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].held_out, 0u);
  EXPECT_EQ(overlap.Find("short").size(), 1u);
}

TEST(OverlapTest, NothingOverlapsWithNothing) {
  Overlap overlap;
  overlap.Finish();
  EXPECT_THAT(overlap.Find("some words"), IsEmpty());
}

TEST(OverlapTest, ATextWithoutBytesHasNoWords) {
  Overlap overlap;
  ASSERT_TRUE(overlap.Add("").ok());
  ASSERT_TRUE(overlap.Add("some words").ok());
  overlap.Finish();
  EXPECT_THAT(overlap.Find(""), IsEmpty());
  EXPECT_EQ(overlap.Find("some words")[0].held_out, 1u);
}

// The runs of 13 words of a text, or all its words if it has fewer.
std::set<std::string> SlowRuns(const std::string& text) {
  const std::vector<std::string> words = Words(text);
  if (words.size() < Overlap::kWords) return {absl::StrCat("short ", absl::StrJoin(words, " "))};
  std::set<std::string> runs;
  for (size_t i = 0; i + Overlap::kWords <= words.size(); ++i)
    runs.insert(absl::StrJoin(words.begin() + i, words.begin() + i + Overlap::kWords, " "));
  return runs;
}

TEST(OverlapTest, FindsWhatComparingAllRunsFinds) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SplitMix64 random(seed);
    // Few words, so that many runs are shared.
    const auto text = [&] {
      const uint64_t length = 10 + random.Below(20), start = random.Below(5);
      std::string out;
      for (uint64_t i = 0; i < length; ++i)
        absl::StrAppend(&out, random.Below(40) == 0 ? "other" : "w", (start + i) % 5, " ");
      return out;
    };

    Overlap overlap;
    std::vector<std::string> held_out;
    for (int i = 0; i < 8; ++i) held_out.push_back(text());
    for (const std::string& one : held_out) ASSERT_TRUE(overlap.Add(one).ok());
    overlap.Finish();

    for (int i = 0; i < 50; ++i) {
      const std::string train = text();
      std::set<uint32_t> expected, found;
      const std::set<std::string> runs = SlowRuns(train);
      for (uint32_t t = 0; t < held_out.size(); ++t) {
        // Of equal texts the first one stands for all.
        if (std::find(held_out.begin(), held_out.begin() + t, held_out[t]) != held_out.begin() + t)
          continue;
        for (const std::string& run : SlowRuns(held_out[t]))
          if (runs.contains(run)) expected.insert(t);
      }
      for (const Overlap::Match& match : overlap.Find(train)) found.insert(match.held_out);
      EXPECT_EQ(found, expected) << "seed " << seed << ": " << train;
    }
  }
}

}  // namespace
}  // namespace sluice::cli
